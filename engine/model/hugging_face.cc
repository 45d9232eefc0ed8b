// Models as Hugging Face publishes them.
#include "engine/model/hugging_face.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "engine/backend/kernels.h"
#include "engine/files/published.h"
#include "engine/files/safetensors.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

// Elements that are staged between file and destination at a time: 8 or 16 MiB.
constexpr int64_t kStagedElems = int64_t{1} << 22;

struct Located {
  const SafetensorsFile* file = nullptr;
  const SafetensorsFile::Entry* entry = nullptr;
};

// Writes the elements of `column` to staged[first], staged[first + stride], ...
template <typename Elem>
void Scatter(char* staged, const std::vector<char>& column, int64_t first, int64_t stride) {
  auto* out = reinterpret_cast<Elem*>(staged) + first;
  const auto count = static_cast<int64_t>(column.size() / sizeof(Elem));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out + i * stride, column.data() + i * static_cast<int64_t>(sizeof(Elem)),
                sizeof(Elem));
}

// The files of the index's weight_map, each once.
std::set<std::string> ShardsOf(const std::string& index) {
  const Json json = ReadJsonFile(index);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    Throw(ErrorCode::kInvalidArgument, "{}: /weight_map is missing; expected an index of shards",
          index);
  }
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      Throw(ErrorCode::kInvalidArgument, "{}: /weight_map/{} is {}; expected a file name", index,
            name, file.dump());
    }
    files.insert(fs::path(index).parent_path() / file.get<std::string>());
  }
  return files;
}

class ForeignWeights final : public WeightSource {
 public:
  ForeignWeights(const std::string& path, const Model& model, const ForeignFiles& expected) {
    OpenFiles(path);
    const std::string& first = model.layers[0]->params()[0].name;
    const std::string prefix =
        Has(expected.optional_prefix + first) ? expected.optional_prefix : "";
    std::vector<std::string> mistakes;
    std::set<std::string> known;
    for (const auto& layer : model.layers) {
      for (const ParamSpec& param : layer->params()) {
        sources_[param.name] = Locate(param, prefix, mistakes);
        for (const TensorSpec& tensor : PublishedOf(param).Tensors(DType::kF32))
          known.insert(prefix + tensor.name);
      }
    }
    const auto ignored = [&](const std::string& name) {
      return std::ranges::any_of(expected.ignored, [&](const std::string& glob) {
        return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
      });
    };
    for (const auto& [name, located] : tensors_) {
      if (!known.contains(name) && !ignored(name)) mistakes.push_back(name + " is not the model's");
    }
    if (mistakes.empty()) return;
    constexpr size_t kShown = 4;
    const size_t num_shown = std::min(mistakes.size(), kShown), rest = mistakes.size() - num_shown;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {}{}; the model block's shape must be that of the weights (give their config.json)",
          path, fmt::join(std::span(mistakes).first(num_shown), "; "),
          rest == 0 ? "" : fmt::format("; and {} more", rest));
  }

  void Read(Kernels& kernels, const std::string& param, int64_t begin, Tensor dst) const override {
    if (dst.data == nullptr) return;  // The counting backend has no values.
    const auto found = sources_.find(param);
    DSAT_CHECK(found != sources_.end(), "{}", param);
    const Source& source = found->second;
    std::vector<char> staged(
        static_cast<size_t>(std::min(kStagedElems, dst.num_elems) * BytesPerElem(source.dtype)));
    for (int64_t done = 0; done < dst.num_elems; done += kStagedElems) {
      const int64_t count = std::min(kStagedElems, dst.num_elems - done);
      const Tensor part{staged.data(), count, source.dtype};
      if (source.transposed) {
        StageTransposed(source, begin + done, part);
      } else {
        source.parts[0].file->Read(*source.parts[0].entry, begin + done, part);
      }
      kernels.Run(op::Cast{dst.Slice(done, count), part});
    }
  }

 private:
  struct Source {
    std::vector<Located> parts;
    bool transposed = false;
    DType dtype = DType::kF32;
  };

  void OpenFiles(const std::string& path) {
    std::set<std::string> paths = {path};
    if (path.ends_with(".json")) paths = ShardsOf(path);
    for (const std::string& file : paths) {
      files_.push_back(std::make_unique<SafetensorsFile>(file));
      for (const auto& [name, entry] : files_.back()->entries())
        tensors_[name] = {files_.back().get(), &entry};
      for (const auto& [name, dtype] : files_.back()->other_dtypes())
        unreadable_[name] = dtype;
    }
  }

  bool Has(const std::string& name) const {
    return tensors_.contains(name) || unreadable_.contains(name);
  }

  Source Locate(const ParamSpec& param, const std::string& prefix,
                std::vector<std::string>& mistakes) const {
    Source source{.parts = {}, .transposed = !param.linears.empty()};
    for (const TensorSpec& tensor : PublishedOf(param).Tensors(DType::kF32)) {
      const std::string name = prefix + tensor.name;
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) {
        const auto other = unreadable_.find(name);
        mistakes.push_back(
            other == unreadable_.end()
                ? name + " is missing"
                : fmt::format("{} is {}, expected F32, BF16 or F16", name, other->second));
        continue;
      }
      const SafetensorsFile::Entry& entry = *found->second.entry;
      if (entry.shape != tensor.shape) {
        mistakes.push_back(fmt::format("{} is [{}], the model's is [{}]", name,
                                       fmt::join(entry.shape, ", "),
                                       fmt::join(tensor.shape, ", ")));
      } else if (!source.parts.empty() && entry.dtype != source.dtype) {
        mistakes.push_back(fmt::format("{} has another dtype than the tensors beside it", name));
      }
      source.dtype = entry.dtype;
      source.parts.push_back(found->second);
    }
    return source;
  }

  // Elements [begin, ...) of the parameter, in the file's dtype, column by column: the elements of
  // one column of ours lie side by side in the file.
  static void StageTransposed(const Source& source, int64_t begin, Tensor staged) {
    int64_t cols = 0;
    for (const Located& part : source.parts)
      cols += part.entry->shape[0];
    const int64_t end = begin + staged.num_elems;
    const int64_t elem_bytes = BytesPerElem(source.dtype);
    std::vector<char> column;
    int64_t col = 0;
    for (const Located& part : source.parts) {
      const int64_t rows = part.entry->shape[1];
      for (int64_t c = 0; c < part.entry->shape[0]; ++c, ++col) {
        // Rows whose element in this column, row * cols + col, is in [begin, end).
        const int64_t first = std::max<int64_t>(0, (begin - col + cols - 1) / cols);
        const int64_t last = std::min(rows, (end - col + cols - 1) / cols);
        if (col >= end || first >= last) continue;
        column.resize(static_cast<size_t>((last - first) * elem_bytes));
        part.file->Read(*part.entry, c * rows + first, {column.data(), last - first, source.dtype});
        const int64_t to = first * cols + col - begin;
        if (elem_bytes == 4) {
          Scatter<uint32_t>(static_cast<char*>(staged.data), column, to, cols);
        } else {
          Scatter<uint16_t>(static_cast<char*>(staged.data), column, to, cols);
        }
      }
    }
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Located> tensors_;
  std::map<std::string, std::string> unreadable_;  // Name and dtype.
  std::map<std::string, Source> sources_;
};

}  // namespace

PublishedParam PublishedOf(const ParamSpec& param) {
  return {param.name, param.shape, param.linears};
}

std::shared_ptr<const WeightSource> OpenForeignWeights(const std::string& path, const Model& model,
                                                       const ForeignFiles& files) {
  return std::make_shared<ForeignWeights>(path, model, files);
}

}  // namespace dsat::engine
