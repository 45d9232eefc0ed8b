// Converts YAML to JSON with line numbers. The only file that uses the YAML library.
#include "searcher/input/experiment_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/regex.h"
#include "engine/config/keys.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/command/trainer_command.h"
#include "searcher/input/document.h"

namespace dsat {
namespace {

// Limits on a file, and on the values that it expands to through aliases.
constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr int kMaxNodes = 100'000;
constexpr int kMaxDepth = 50;
constexpr size_t kMaxPointerBytes = size_t{32} << 20;  // The names of all values.

bool IsWord(const std::string& text, const char* lower, const char* title, const char* upper) {
  return text == lower || text == title || text == upper;
}

// A scalar without quotes, by YAML's core schema; 5e8 is a number as in JSON.
Json PlainScalar(const std::string& text) {
  if (text.empty() || text == "~" || IsWord(text, "null", "Null", "NULL")) return Json();
  if (IsWord(text, "true", "True", "TRUE")) return true;
  if (IsWord(text, "false", "False", "FALSE")) return false;
  bool numeric = text.find_first_not_of("0123456789+-.eE") == text.npos;
  if (!numeric) return text;
  const std::string_view digits = std::string_view(text).substr(text.starts_with('+') ? 1 : 0);
  if (std::optional<int64_t> number = ParseNumber<int64_t>(digits)) return *number;
  std::optional<double> number = ParseNumber<double>(digits);
  return number && std::isfinite(*number) ? Json(*number) : Json(text);
}

// Sees the events of a document and keeps nothing.
class NoDocument : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Whether a text has one document. YAML::LoadAll does not end where a document begins with a comma.
bool IsOneDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoDocument nothing;
  return parser.HandleNextDocument(nothing) && !parser.HandleNextDocument(nothing);
}

class Converter {
 public:
  explicit Converter(ExperimentDocument& document) : document_(document) {}

  Json Convert(const YAML::Node& node, const std::string& pointer) {
    const Level level(*this, pointer);
    document_.lines.try_emplace(pointer, node.Mark().line + 1);
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        CheckText(node.Scalar(), pointer);
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
  // Counts a value while it is converted. An alias may lead to itself, and to any number of values.
  struct Level {
    Level(Converter& converter_in, const std::string& pointer) : converter(converter_in) {
      converter.pointer_bytes_ += pointer.size();
      const bool has_room =
          ++converter.nodes_ <= kMaxNodes && converter.pointer_bytes_ <= kMaxPointerBytes;
      if (++converter.depth_ > kMaxDepth)
        converter.Refuse(fmt::format("values are nested more than {} levels deep", kMaxDepth));
      if (!has_room)
        converter.Refuse(fmt::format("it has more than {} values, or {} of keys", kMaxNodes,
                                     HumanBytes(kMaxPointerBytes)));
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --converter.depth_; }
    Converter& converter;
  };

  [[noreturn]] void Refuse(const std::string& why) const {
    Throw(ErrorCode::kInvalidArgument,
          "{}: {}, with what its aliases repeat; expected an experiment file", document_.path, why);
  }

  // JSON holds UTF-8 only.
  void CheckText(const std::string& text, const std::string& pointer) const {
    if (ValidUtf8(text) != text)
      document_.Fail(pointer, fmt::format("has \"{}\", which is not UTF-8", ValidUtf8(text)));
  }

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
      CheckText(key, pointer);
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
    const Level level(*this, pointer);
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
  int depth_ = 0;
  size_t pointer_bytes_ = 0;
};

ExperimentDocument ReadDocument(const std::string& path) {
  ExperimentDocument document;
  document.path = path;
  const std::string text = ReadFile(path, kMaxFileBytes);
  YAML::Node root;
  bool is_one = false;
  try {
    is_one = IsOneDocument(text);
    if (is_one) root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    std::istringstream lines(text);
    std::string line;
    for (int i = 0; i <= error.mark.line; ++i)
      std::getline(lines, line);
    const bool has_tab = line.substr(0, line.find_first_not_of(" \t")).find('\t') != line.npos;
    Throw(ErrorCode::kInvalidArgument, "{}:{}: not YAML: {}{}", path, error.mark.line + 1,
          error.msg, has_tab ? "; the line is indented by a tab, expected spaces" : "");
  }
  if (!is_one || !root.IsMap()) {
    Throw(ErrorCode::kInvalidArgument, "{}:1: expected one YAML document with \"key: value\" lines",
          path);
  }
  document.root = Converter(document).Convert(root, "");
  return document;
}

// A user of DeepSpeed may pass the ds_config in place of an experiment file.
void RefuseDsConfig(const ExperimentDocument& document) {
  if (document.root.contains("entrypoint") || document.root.contains("hyperparameters")) return;
  for (const auto& [key, value] : document.root.items()) {
    if (engine::Keys().Find("/" + key) == nullptr) continue;
    document.Fail("/" + key,
                  "is a key of a ds_config; expected an experiment file, which has the command in "
                  "entrypoint and the path of the ds_config in hyperparameters.deepspeed_config "
                  "(docs/experiment-file.md)");
  }
}

namespace fs = std::filesystem;

// The name of the command's script without its ending, or of its program.
std::string NameOf(const CommandWords& command) {
  const std::vector<CommandWord>& words = command.words();
  const auto script = std::ranges::find_if(
      words, [](const CommandWord& word) { return word.text.ends_with(".py"); });
  return fs::path((script == words.end() ? words.front() : *script).text).stem().string();
}

// Whether the file exists and is not so large that it is data.
bool IsSmallFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) <= kMaxFileBytes;
}

bool IsDsConfig(const fs::path& path) {
  if (path.extension() != ".json" || !IsSmallFile(path)) return false;
  try {
    const Json json = ReadJsonFile(path);
    return std::ranges::any_of(
        std::array{"zero_optimization", "train_batch_size", kMicroBatchKey + 1},
        [&](const char* key) { return json.contains(key); });
  } catch (const Error&) {  // It is data, too.
    return false;
  }
}

// The files among the arguments and the values of flags: scripts, configs and files of arguments.
std::vector<std::string> FilesAmong(const CommandWords& command) {
  std::vector<std::string> files;
  for (const CommandWord& word : command.words()) {
    const size_t equals = word.text.starts_with('-') ? word.text.find('=') : std::string::npos;
    const std::string text = equals == word.text.npos ? word.text : word.text.substr(equals + 1);
    for (const char* ending : {".json", ".yaml", ".yml", ".py"}) {
      if (text.ends_with(ending)) files.push_back(text);
    }
  }
  return files;
}

// The first ds_config among the files, or whose name one of them has.
std::optional<std::string> DsConfigAmong(const std::vector<std::string>& files,
                                         const fs::path& folder) {
  for (const std::string& file : files) {
    if (IsDsConfig(folder / file)) return file;
  }
  static const RE2 kName(R"(([^\s"'=:,]+\.json)\b)", RegexOptions());
  for (const std::string& file : files) {
    const std::string text = IsSmallFile(folder / file) ? ReadOrEmpty(folder / file) : "";
    re2::StringPiece rest = Piece(text);
    for (std::string name; RE2::FindAndConsume(&rest, kName, &name);) {
      if (IsDsConfig(folder / name)) return name;
    }
  }
  return std::nullopt;
}

// The ds_config that the command or one of its files names, as it is written there.
std::string DsConfigOf(const CommandWords& command, const std::string& folder) {
  ExperimentSpec nothing;
  const std::vector<ArgumentPart> parts = FindConfigArguments(command, nothing);
  if (!parts.empty()) return TextOf(command, parts.front());
  const std::vector<std::string> files = FilesAmong(command);
  if (const auto among = DsConfigAmong(files, folder)) return *among;
  std::string missing;
  for (const std::string& file : files) {
    if (!fs::exists(fs::path(folder) / file)) missing = fmt::format(" ({}: no such file)", file);
  }
  ExperimentSpec spec;
  spec.entrypoint = command.Changed();
  spec.model_dir = folder;
  Throw(
      ErrorCode::kInvalidArgument,
      "the command behind -- names no ds_config, nor do its files{}: {}", missing,
      ParsesTrainerArguments(spec)
          ? "write {\"train_micro_batch_size_per_gpu\": \"auto\", \"zero_optimization\": "
            "{\"stage\": 2}} to ds_config.json, and add --deepspeed ds_config.json, which Hugging "
            "Face's trainer takes; its own arguments stay"
          : "expected a FILE.json, as in --deepspeed_config FILE.json; or write an experiment file "
            "with the settings that the script has, such as deepspeed_config: "
            "{train_micro_batch_size_per_gpu: 8, gradient_accumulation_steps: 1, "
            "zero_optimization: {stage: 2}} (docs/experiment-file.md); a script without DeepSpeed "
            "needs one line for dsat (docs/python.md#training-without-deepspeed)");
}

int64_t SlotsOf(const CommandWords& command, const TypedCommand& typed) {
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  if (!launcher) return 1;
  if (launcher->num_ranks) return *launcher->num_ranks;
  const std::string ranks = ValueOfAccelerate(command, typed.folder, "num_processes");
  if (const auto number = ParseNumber<int64_t>(ranks); number.value_or(0) > 0) return *number;
  const int64_t num_gpus = launcher->name == "deepspeed" ? typed.count_gpus() : 0;
  if (num_gpus > 0) return num_gpus;
  Throw(ErrorCode::kInvalidArgument,
        "the command behind -- does not say how many ranks {} starts: add {} N to it",
        launcher->name, launcher->ranks_flag);
}

}  // namespace

std::string ExperimentDocument::Place(const std::string& pointer) const {
  std::string known = pointer;
  while (!known.empty() && !lines.contains(known))
    known.erase(known.rfind('/'));
  auto line = lines.find(known);
  return fmt::format("{}:{}: {}", path, line == lines.end() ? 1 : line->second, pointer);
}

void ExperimentDocument::Fail(const std::string& pointer, const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", Place(pointer), message));
}

ExperimentSpec ReadExperimentFile(const std::string& path, const std::string& model_dir,
                                  std::vector<std::string>* warnings) {
  const ExperimentDocument document = ReadDocument(path);
  RefuseDsConfig(document);
  std::filesystem::path file = std::filesystem::absolute(path).lexically_normal();
  std::filesystem::path folder = model_dir.empty()
                                     ? file.parent_path()
                                     : std::filesystem::absolute(model_dir).lexically_normal();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    Throw(ErrorCode::kNotFound, "model folder {}: no such folder", folder.string());
  }
  ExperimentSpec spec = SpecFromDocument(document, folder.string(), warnings);
  spec.config_path = file.string();
  if (spec.name.empty()) spec.name = file.stem().string();
  return spec;
}

std::string ExperimentFileOf(const TypedCommand& command) {
  const CommandWords words(command.words);
  DSAT_CHECK(!words.words().empty(), "an empty command");
  const std::string config = DsConfigOf(words, command.folder);
  return fmt::format(
      "# What dsat tunes: this command, with the settings of its ds_config.\n"
      "# docs/experiment-file.md has the other keys, such as search_space.\n"
      "name: {}\n"
      "entrypoint: {}\n"
      "resources:\n"
      "  slots_per_trial: {}  # The ranks that the command starts.\n"
      "hyperparameters:\n"
      "  deepspeed_config: {}\n",
      Json(NameOf(words)).dump(), Json(command.words).dump(), SlotsOf(words, command),
      Json(config).dump());
}

std::string WriteExperimentFile(const TypedCommand& command) {
  const std::string text = ExperimentFileOf(command);
  const std::string name = NameOf(CommandWords(command.words));
  const fs::path parent = fs::path(command.folder) / "dsat-out" / "commands";
  fs::create_directories(parent);
  for (int number = 1;; ++number) {
    const std::string path =
        (parent / fmt::format("{}{}.yaml", name, number == 1 ? "" : fmt::format("-{}", number)))
            .string();
    if (fs::exists(path) && ReadOrEmpty(path) != text) continue;
    WriteFileAtomic(path, text);
    return path;
  }
}

const Json* FindExperimentKey(const std::string& pointer) {
  static const Json schema = Json::parse(kExperimentSchema);
  std::string at;
  for (const char c : pointer)
    at += c == '/' ? "/properties/" : std::string(1, c);
  return FindAtPointer(schema, at);
}

bool Fits(const Json& schema, const Json& value) {
  const Json types = schema.value("type", Json::array());
  const Json words = schema.value("enum", Json::array());
  const auto has_type = [&](const Json& type) {
    if (type == "integer") return WholeNumber(value).has_value();
    if (type == "string") return value.is_string();
    return type == "array" ? value.is_array() : value.is_object();
  };
  if (!types.empty() && std::ranges::none_of(types, has_type)) return false;
  if (!words.empty() && std::ranges::find(words, value) == words.end()) return false;
  if (value == "") return schema.value("minLength", 0) == 0;
  const std::optional<int64_t> number = WholeNumber(value);
  return !number || (*number >= schema.value("minimum", *number) &&
                     *number <= schema.value("maximum", *number));
}

}  // namespace dsat
