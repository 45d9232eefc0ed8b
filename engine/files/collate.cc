// One file of whole parameters from a checkpoint.
#include "engine/files/collate.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/enum_names.h"
#include "base/error.h"
#include "engine/core/elements.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/files/published.h"
#include "engine/files/safetensors.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockElems = 1 << 20;

constexpr EnumNames<DType, 3> kTypes = {
    "--dtype", {{{DType::kF32, "fp32"}, {DType::kBF16, "bf16"}, {DType::kF16, "fp16"}}}};

void CheckOutput(const CollateOptions& options) {
  if (fs::is_directory(options.out)) {
    Throw(ErrorCode::kInvalidArgument, "{}: is a folder; expected a file name", options.out);
  }
  CheckPublishedName(options.out);
  const fs::file_status there = fs::symlink_status(options.out);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    Throw(ErrorCode::kInvalidArgument, "{}: is not a regular file; expected a name that is free",
          options.out);
  }
  if (fs::exists(there) && !options.force) {
    Throw(ErrorCode::kAlreadyExists, "{}: exists; --force replaces it", options.out);
  }
}

// Elements [begin, begin + entry->num_elems) of a parameter, in a rank's file.
struct SavedPiece {
  int64_t begin = 0;
  SafetensorsFile* file = nullptr;
  const SafetensorsFile::Entry* entry = nullptr;
};

std::vector<SavedPiece> PiecesOf(const std::string& name, std::vector<SafetensorsFile>& files) {
  std::vector<SavedPiece> pieces;
  for (SafetensorsFile& file : files) {
    if (const SafetensorsFile::Entry* entry = file.Find(name)) {
      pieces.push_back({file.BeginOf(name), &file, entry});
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const SavedPiece& a, const SavedPiece& b) { return a.begin < b.begin; });
  return pieces;
}

// The pieces of a parameter's most exact copy, one after another. Throws kDataLoss if it is not
// whole.
std::vector<SavedPiece> FindParameter(const TensorSpec& spec, std::vector<SafetensorsFile>& files,
                                      const std::string& folder) {
  std::vector<SavedPiece> pieces = PiecesOf("master/" + spec.name, files);
  if (pieces.empty()) pieces = PiecesOf("param/" + spec.name, files);
  int64_t end = 0;
  for (const SavedPiece& piece : pieces) {
    if (piece.begin != end) break;
    end += piece.entry->num_elems;
  }
  if (end != spec.NumElems()) {
    Throw(ErrorCode::kDataLoss, "{}: {} of {} elements of {} are there", folder, end,
          spec.NumElems(), spec.name);
  }
  return pieces;
}

// Room for a block of at most `num_elems` elements.
class Block {
 public:
  Block(DType dtype, int64_t num_elems)
      : dtype_(dtype), bytes_(std::min(kBlockElems, num_elems) * BytesPerElem(dtype)) {}
  Tensor First(int64_t num_elems) { return Tensor{bytes_.data(), num_elems, dtype_}; }

 private:
  DType dtype_;
  std::vector<char> bytes_;
};

// Writes a piece, converted; tells `on_bytes` of the bytes read.
void CopyPiece(const SavedPiece& piece, DType dtype, PublishedWriter& out,
               const std::function<void(int64_t)>& on_bytes) {
  Block converted(dtype, piece.entry->num_elems);
  Block block(piece.entry->dtype, piece.entry->num_elems);
  for (int64_t begin = 0; begin < piece.entry->num_elems; begin += kBlockElems) {
    const int64_t count = std::min(kBlockElems, piece.entry->num_elems - begin);
    piece.file->Read(*piece.entry, begin, block.First(count));
    ConvertElems(converted.First(count), block.First(count));
    out.Write(converted.First(count));
    on_bytes(block.First(count).bytes());
  }
}

}  // namespace

CollateResult Collate(const CollateOptions& options,
                      const std::function<void(int64_t, int64_t)>& progress) {
  const DType dtype = ParseName(kTypes, options.dtype);
  CollateResult result{.tag = ResolveTag(options.dir, options.tag)};
  CheckOutput(options);
  const std::string folder = options.dir + "/" + result.tag;
  const CheckpointManifest manifest = ReadManifest(folder);
  int64_t done_bytes = 0, all_bytes = 0;
  for (const CheckpointFile& file : manifest.files)
    all_bytes += file.bytes;
  const auto on_bytes = [&](int64_t bytes) { progress(done_bytes += bytes, all_bytes); };

  std::vector<SafetensorsFile> files;
  all_bytes *= 2;  // A guess of what comes after the check, until it is known.
  for (const CheckpointFile& file : manifest.files) {
    VerifyFile(folder, file, on_bytes);
    files.emplace_back(folder + "/" + file.name);
  }
  std::vector<PublishedParam> published;
  std::vector<std::vector<SavedPiece>> parameters;
  all_bytes = done_bytes;
  for (const auto& [name, shape] : manifest.parameters) {
    const TensorSpec spec{name, dtype, shape};
    parameters.push_back(FindParameter(spec, files, folder));
    for (const SavedPiece& piece : parameters.back())
      all_bytes += piece.entry->num_elems * BytesPerElem(piece.entry->dtype);
    const auto linears = manifest.linears.find(name);
    published.push_back({name, shape, {}});
    if (linears != manifest.linears.end()) published.back().linears = linears->second;
    result.num_tensors += static_cast<int64_t>(published.back().Tensors(dtype).size());
    result.num_elems += spec.NumElems();
  }

  PublishedWriter out(options.out, dtype, std::move(published));
  for (const std::vector<SavedPiece>& pieces : parameters) {
    for (const SavedPiece& piece : pieces)
      CopyPiece(piece, dtype, out, on_bytes);
  }
  out.Commit();
  result.file_bytes = static_cast<int64_t>(fs::file_size(options.out));
  return result;
}

}  // namespace dsat::engine
