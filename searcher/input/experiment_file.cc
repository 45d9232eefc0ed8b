// Converts YAML to JSON with line numbers. The only file that uses the YAML library.
#include "searcher/input/experiment_file.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "searcher/input/experiment_document.h"

namespace dsat {
namespace {

// A limit on the number of nodes, because aliases can expand to any number.
constexpr int kMaxNodes = 100'000;

bool IsWord(const std::string& text, const char* lower, const char* title, const char* upper) {
  return text == lower || text == title || text == upper;
}

// `text` as a number, nullopt if it is not one.
template <typename Number>
std::optional<Number> ParseNumber(const std::string& text) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  Number value = 0;
  auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// A scalar without quotes, by YAML's core schema; 5e8 is a number as in JSON.
Json PlainScalar(const std::string& text) {
  if (text.empty() || text == "~" || IsWord(text, "null", "Null", "NULL")) return Json();
  if (IsWord(text, "true", "True", "TRUE")) return true;
  if (IsWord(text, "false", "False", "FALSE")) return false;
  bool numeric = text.find_first_not_of("0123456789+-.eE") == text.npos;
  if (!numeric) return text;
  if (std::optional<int64_t> number = ParseNumber<int64_t>(text)) return *number;
  std::optional<double> number = ParseNumber<double>(text);
  return number && std::isfinite(*number) ? Json(*number) : Json(text);
}

class Converter {
 public:
  explicit Converter(ExperimentDocument& document) : document_(document) {}

  Json Convert(const YAML::Node& node, const std::string& pointer) {
    document_.lines.try_emplace(pointer, node.Mark().line + 1);
    if (++nodes_ > kMaxNodes) document_.Fail(pointer, "the file has too many values");
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return node.Tag() == "!" ? Json(node.Scalar()) : PlainScalar(node.Scalar());
      case YAML::NodeType::Sequence:
        return ConvertSequence(node, pointer);
      case YAML::NodeType::Map:
        return ConvertMap(node, pointer);
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    return Json();
  }

 private:
  Json ConvertSequence(const YAML::Node& node, const std::string& pointer) {
    Json array = Json::array();
    for (const YAML::Node& item : node) {
      array.push_back(Convert(item, fmt::format("{}/{}", pointer, array.size())));
    }
    return array;
  }

  Json ConvertMap(const YAML::Node& node, const std::string& pointer) {
    Json object = Json::object();
    std::vector<YAML::Node> merged;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) document_.Fail(pointer, "has a key that is not a text");
      const std::string& key = entry.first.Scalar();
      std::string at = pointer + "/" + key;
      if (key == "<<") {
        merged.push_back(entry.second);
        continue;
      }
      if (object.contains(key)) {
        document_.lines[at] = entry.first.Mark().line + 1;
        document_.Fail(at, "is given twice");
      }
      document_.lines.try_emplace(at, entry.first.Mark().line + 1);
      object[key] = Convert(entry.second, at);
    }
    for (const YAML::Node& source : merged)
      Merge(source, pointer, object);
    return object;
  }

  // YAML's merge key: keys of another map, or of several, that this map does not have itself.
  void Merge(const YAML::Node& source, const std::string& pointer, Json& object) {
    if (source.IsSequence()) {
      for (const YAML::Node& item : source)
        Merge(item, pointer, object);
      return;
    }
    if (!source.IsMap()) document_.Fail(pointer + "/<<", "expected a map or a list of maps");
    Json other = ConvertMap(source, pointer);
    for (const auto& [key, value] : other.items())
      object.emplace(key, value);
  }

  ExperimentDocument& document_;
  int nodes_ = 0;
};

ExperimentDocument ReadDocument(const std::string& path) {
  ExperimentDocument document;
  document.path = path;
  std::vector<YAML::Node> nodes;
  try {
    nodes = YAML::LoadAll(ReadFile(path));
  } catch (const YAML::Exception& error) {
    Throw(ErrorCode::kInvalidArgument, "{}:{}: not YAML: {}", path, error.mark.line + 1, error.msg);
  }
  if (nodes.size() != 1 || !nodes[0].IsMap()) {
    Throw(ErrorCode::kInvalidArgument, "{}:1: expected one YAML document with \"key: value\" lines",
          path);
  }
  document.root = Converter(document).Convert(nodes[0], "");
  return document;
}

}  // namespace

ExperimentSpec ReadExperimentFile(const std::string& path, const std::string& model_dir,
                                  std::vector<std::string>* warnings) {
  ExperimentDocument document = ReadDocument(path);
  std::filesystem::path file = std::filesystem::absolute(path).lexically_normal();
  std::filesystem::path folder = model_dir.empty()
                                     ? file.parent_path()
                                     : std::filesystem::absolute(model_dir).lexically_normal();
  if (!std::filesystem::is_directory(folder)) {
    Throw(ErrorCode::kNotFound, "model folder {}: no such folder", folder.string());
  }
  ExperimentSpec spec = SpecFromDocument(document, folder.string(), warnings);
  spec.config_path = file.string();
  if (spec.name.empty()) spec.name = file.stem().string();
  return spec;
}

}  // namespace dsat
