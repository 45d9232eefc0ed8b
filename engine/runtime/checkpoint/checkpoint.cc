// Checkpoints that load at any number of ranks and any ZeRO stage.
#include "engine/runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/file_writer.h"
#include "base/files.h"
#include "engine/comm/run_together.h"
#include "engine/files/crc32.h"
#include "engine/files/published.h"
#include "engine/model/hugging_face.h"

namespace dsat::engine {
namespace {

constexpr char kSaving[] = "saving a checkpoint", kLoading[] = "loading a checkpoint";
constexpr char kMaster[] = "master/";
constexpr int64_t kConvertedElems = int64_t{1} << 18;  // At a time.

// Elements [begin, end) of a parameter, as they rest in `data`.
struct Piece {
  std::string name;  // "<state>/<parameter>"
  int64_t begin = 0;
  Tensor data;
};

// A master copy in the parameters' own dtype is the parameters again.
std::string NameIn(const StatePart& part, DType dtype) {
  return part.state == "master" && part.data.dtype == dtype ? "param" : part.state;
}

// The pieces of a state that lie in elements [begin, end) of the unit and rest here.
std::vector<Piece> PiecesIn(const Layer& layer, const UnitLayout& layout, const StatePart& part,
                            DType dtype, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  const auto& specs = layer.params();
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t param_begin = layout.offsets[i];
    const int64_t from = std::max({begin, part.begin, param_begin});
    const int64_t to =
        std::min({end, part.begin + part.data.num_elems, param_begin + specs[i].NumElems()});
    if (from >= to) continue;
    pieces.push_back({NameIn(part, dtype) + "/" + specs[i].name, from - param_begin,
                      part.data.Slice(from - part.begin, to - from)});
  }
  return pieces;
}

// Shows every piece that this rank's file has.
void VisitPieces(const Model& model, UnitStates& states, UnitStates::Access access,
                 const std::function<void(const Piece&)>& visitor) {
  for (int u = 0; u < states.num_units(); ++u) {
    if (!states.IsSavedHere(u)) continue;
    const int64_t begin = states.rank() * states.SliceElems(u);
    states.Visit(u, access, [&](const StatePart& part) {
      if (part.state[0] == 'm' && NameIn(part, states.dtype()) == "param") return;
      for (const Piece& piece : PiecesIn(*model.layers[u], states.unit(u).layout, part,
                                         states.dtype(), begin, begin + states.SliceElems(u)))
        visitor(piece);
    });
  }
}

// The file with everything but its end (Commit).
std::unique_ptr<SafetensorsWriter> WriteRankFile(const std::string& path, const Model& model,
                                                 UnitStates& states) {
  std::map<std::string, std::string> begins;
  std::vector<TensorSpec> specs;
  VisitPieces(model, states, UnitStates::Access::kShape, [&](const Piece& piece) {
    begins[piece.name] = std::to_string(piece.begin);
    specs.push_back({piece.name, piece.data.dtype, {piece.data.num_elems}});
  });
  auto writer = std::make_unique<SafetensorsWriter>(path, begins, std::move(specs));
  VisitPieces(model, states, UnitStates::Access::kRead,
              [&](const Piece& piece) { writer->Write(piece.data); });
  return writer;
}

// A field of every parameter, by name.
template <typename Field>
std::map<std::string, Field> OfParams(const Model& model, Field ParamSpec::*field) {
  std::map<std::string, Field> fields;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& spec : layer->params())
      fields[spec.name] = spec.*field;
  }
  return fields;
}

// The number that rank `root` has, on every rank.
double FromRank(ProcessGroup& group, int root, double value) {
  return group.SumScalar(group.rank() == root ? value : 0);
}

// The file that every rank has written, by rank.
std::vector<CheckpointFile> ExchangeSums(const SafetensorsWriter& mine, int revision,
                                         ProcessGroup& group) {
  std::vector<CheckpointFile> files;
  for (int r = 0; r < group.size(); ++r) {
    files.push_back(
        {.name = RankFileName(r, revision),
         .bytes = static_cast<int64_t>(FromRank(group, r, static_cast<double>(mine.bytes()))),
         .crc32 = static_cast<uint32_t>(FromRank(group, r, mine.crc32()))});
  }
  return files;
}

void CheckSameTag(const std::string& tag, ProcessGroup& group) {
  const double sum = Crc32(0, tag);
  const double largest = group.MaxScalar(sum), smallest = -group.MaxScalar(-sum);
  if (largest != smallest) {
    Throw(ErrorCode::kInvalidArgument,
          "checkpoint tag \"{}\" of rank {} is not that of all ranks; expected the same everywhere",
          tag, group.rank());
  }
}

// Everything but the manifest is on disk: this makes it a checkpoint, and the newest.
void Publish(const std::string& dir, const std::string& tag, const CheckpointManifest& manifest) {
  const std::string folder = dir + "/" + tag;
  SyncFolder(folder);
  WriteManifest(folder, manifest);
  SyncFolder(dir);
  SyncFolder(dir + "/..");
  WriteFileAtomic(dir + "/latest", tag);
  RemoveLeftovers(dir);  // Files that the new manifest has replaced.
}

void CheckFits(const CheckpointManifest& manifest, const std::string& folder, const Model& model,
               const UnitStates& states, const std::string& optimizer) {
  constexpr char kWayOut[] =
      "continue with the config that it was trained with, or train from the beginning into another "
      "folder";
  if (manifest.dtype != states.dtype()) {
    Throw(ErrorCode::kInvalidArgument, "{}/manifest.json: /dtype is {}; the model runs in {}: {}",
          folder, SafetensorsName(manifest.dtype), SafetensorsName(states.dtype()), kWayOut);
  }
  if (manifest.parameters != OfParams(model, &ParamSpec::shape)) {
    Throw(ErrorCode::kInvalidArgument,
          "{}/manifest.json: /parameters are not those of this model ({}): {}", folder,
          model.description, kWayOut);
  }
  const std::string saved = manifest.engine.value("optimizer", optimizer);  // Old ones lack it.
  if (!optimizer.empty() && MomentsOf(saved) != MomentsOf(optimizer)) {
    Throw(ErrorCode::kInvalidArgument,
          "{}/manifest.json: /engine/optimizer is {}; the config has {}, whose moments are others: "
          "{}",
          folder, saved, optimizer, kWayOut);
  }
}

void VerifyShare(const CheckpointManifest& manifest, const std::string& folder,
                 const ProcessGroup& group) {
  for (size_t i = static_cast<size_t>(group.rank()); i < manifest.files.size();
       i += static_cast<size_t>(group.size())) {
    VerifyFile(folder, manifest.files[i], [](int64_t) {});
  }
}

// As SafetensorsFile::Read, converting dtypes.
void ReadAs(const SafetensorsFile& file, const SafetensorsFile::Entry& entry, int64_t begin,
            Tensor dst, const Memory& memory) {
  if (entry.dtype == dst.dtype) return file.Read(entry, begin, dst);
  const int64_t room_elems = std::min(dst.num_elems, kConvertedElems);
  const Buffer room = memory.host.Allocate(entry.dtype, room_elems, "state on its way");
  for (int64_t from = 0; from < dst.num_elems; from += room_elems) {
    const int64_t count = std::min(room_elems, dst.num_elems - from);
    const Tensor saved = room.AsTensor(entry.dtype).Slice(0, count);
    file.Read(entry, begin + from, saved);
    memory.host_kernels.Run(op::Cast{dst.Slice(from, count), saved});
  }
}

// Copies what `file` has of the piece; gives the number of elements.
int64_t ReadPiece(const SafetensorsFile& file, const Piece& piece, const Memory& memory) {
  const SafetensorsFile::Entry* entry = file.Find(piece.name);
  if (entry == nullptr) return 0;
  const int64_t saved_begin = file.BeginOf(piece.name);
  const int64_t from = std::max(saved_begin, piece.begin);
  const int64_t to = std::min(saved_begin + entry->num_elems, piece.begin + piece.data.num_elems);
  if (from >= to) return 0;
  ReadAs(file, *entry, from - saved_begin, piece.data.Slice(from - piece.begin, to - from), memory);
  return to - from;
}

// The state's name in the files: what was trained without a master copy is its own.
std::string SavedName(const std::string& name, const std::vector<SafetensorsFile>& files) {
  const auto has = [&](const SafetensorsFile& file) { return file.Find(name) != nullptr; };
  const bool is_master = name.starts_with(kMaster);
  return !is_master || std::ranges::any_of(files, has)
             ? name
             : "param/" + name.substr(sizeof(kMaster) - 1);
}

void ReadRankFiles(const std::string& folder, const CheckpointManifest& manifest,
                   const Model& model, UnitStates& states) {
  std::vector<SafetensorsFile> files;
  for (const CheckpointFile& file : manifest.files)
    files.emplace_back(folder + "/" + file.name);
  const auto read = [&](Piece piece) {
    piece.name = SavedName(piece.name, files);
    int64_t num_read = 0;
    for (const SafetensorsFile& file : files)
      num_read += ReadPiece(file, piece, states.memory());
    if (num_read == piece.data.num_elems) return;
    Throw(
        ErrorCode::kInvalidArgument,
        "{}: {} of {} elements of {} are there; it was saved with another optimizer, or with this "
        "parameter frozen: continue with the config and model that it was trained with",
        folder, num_read, piece.data.num_elems, piece.name);
  };
  for (int u = 0; u < states.num_units(); ++u) {
    const UnitLayout& layout = states.unit(u).layout;
    states.Visit(u, UnitStates::Access::kWrite, [&](const StatePart& part) {
      // No file has the padding, which 1-bit Adam changes as it changes every element.
      states.memory().host_kernels.Run(op::Fill{part.data, 0});
      for (const Piece& piece :
           PiecesIn(*model.layers[u], layout, part, states.dtype(), 0, layout.num_elems))
        read(piece);
    });
  }
}

void CheckClientState(const Json& client_state) {
  const std::string text = client_state.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (Json::parse(text) == client_state) return;
  Throw(ErrorCode::kInvalidArgument,
        "client_state: {}: expected finite numbers and UTF-8, which are all that JSON can keep",
        text);
}

constexpr char kExporting[] = "saving the model";
constexpr int64_t kBlockElems = 1 << 20;

// The units whose parameters are to be in the file.
std::vector<int> SavedUnits(const Model& model, bool exclude_frozen) {
  std::vector<int> units;
  for (size_t u = 0; u < model.layers.size(); ++u) {
    const bool empty = model.layers[u]->params().empty();
    if (!empty && !(model.IsFrozen(u) && exclude_frozen)) units.push_back(static_cast<int>(u));
  }
  return units;
}

std::unique_ptr<PublishedWriter> Open(const std::string& dir, const std::string& name,
                                      const Model& model, DType dtype,
                                      const std::vector<int>& units) {
  std::vector<PublishedParam> params;
  for (const int u : units) {
    for (const ParamSpec& spec : model.layers[static_cast<size_t>(u)]->params())
      params.push_back(PublishedOf(spec));
  }
  MakeWritableFolder(dir);
  return std::make_unique<PublishedWriter>(dir + "/" + name, dtype, std::move(params));
}

// Brings a model's parameters to rank 0 and, there, into the file.
class ModelWriter {
 public:
  // `out` is there on rank 0 only.
  ModelWriter(const Model& model, UnitStates& states, int data_parallel_size, ProcessGroup& group,
              PublishedWriter* out)
      : model_(model),
        states_(states),
        data_parallel_size_(data_parallel_size),
        group_(group),
        out_(out) {}

  void Write(int u) {
    // Units of other pipeline stages have no layout among the states here.
    layout_ = LayoutOf(*model_.layers[static_cast<size_t>(u)], data_parallel_size_);
    const int num_parts = states_.IsSharded(u) ? data_parallel_size_ : 1;
    const int64_t part_elems = layout_.num_elems / num_parts;
    for (int part = 0; part < num_parts; ++part) {
      const bool mine = states_.IsSavedHere(u) && states_.rank() == part;
      const int owner = static_cast<int>(group_.MaxScalar(mine ? group_.rank() + 1 : 0)) - 1;
      MovePart(u, owner, part * part_elems, part_elems);
    }
  }
  void Rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // A rank on which something goes wrong takes part to the end: nobody may be left waiting for it.
  template <typename Work>
  void Try(const Work& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Elements [begin, begin + num_elems) of a unit, from the rank that has them.
  void MovePart(int u, int owner, int64_t begin, int64_t num_elems) {
    std::vector<char> room;
    if (group_.rank() == owner) room = ReadPart(u, num_elems);
    for (int64_t from = 0; from < num_elems; from += kBlockElems) {
      const int64_t count = std::min(kBlockElems, num_elems - from);
      const int64_t bytes = count * BytesPerElem(states_.dtype());
      if (group_.rank() == 0 && owner != 0) {
        room.resize(static_cast<size_t>(bytes));
        group_.Recv(room.data(), bytes, owner);
        WriteBlock(u, begin + from, {room.data(), count, states_.dtype()});
      } else if (group_.rank() == owner) {
        const Tensor block = Tensor{room.data(), num_elems, states_.dtype()}.Slice(from, count);
        if (owner == 0) WriteBlock(u, begin + from, block);
        if (owner != 0) group_.Send(block.data, bytes, 0);
      }
    }
  }

  std::vector<char> ReadPart(int u, int64_t num_elems) {
    std::vector<char> part(static_cast<size_t>(num_elems * BytesPerElem(states_.dtype())));
    size_t end = 0;  // The bytes that have come.
    Try([&] {
      states_.Visit(u, UnitStates::Access::kRead, [&](const StatePart& state) {
        if (state.state != "param") return;
        const auto bytes = static_cast<size_t>(state.data.bytes());
        DSAT_CHECK(bytes <= part.size() - end);
        std::memcpy(part.data() + end, state.data.data, bytes);
        end += bytes;
      });
      DSAT_CHECK(end == part.size(), "{} of {} bytes of unit {}", end, part.size(), u);
    });
    return part;
  }

  // Writes the parameters in a block that begins at element `begin` of the unit: all but the
  // padding between them.
  void WriteBlock(int u, int64_t begin, const Tensor& block) {
    const auto& specs = model_.layers[static_cast<size_t>(u)]->params();
    Try([&] {
      for (size_t i = 0; i < specs.size(); ++i) {
        const int64_t from = std::max(begin, layout_.offsets[i]);
        const int64_t to =
            std::min(begin + block.num_elems, layout_.offsets[i] + specs[i].NumElems());
        if (from < to) out_->Write(block.Slice(from - begin, to - from));
      }
    });
  }

  const Model& model_;
  UnitStates& states_;
  const int data_parallel_size_;
  ProcessGroup& group_;
  PublishedWriter* out_;
  UnitLayout layout_;  // The layout of the unit under way.
  std::exception_ptr failure_;
};

}  // namespace

std::string MomentsOf(const std::string& optimizer) {
  return optimizer == "adamw" ? "adam" : optimizer;
}

CheckpointSave::CheckpointSave(std::string dir, std::string tag, const Model& model,
                               UnitStates& states, const CheckpointNotes& notes,
                               ProcessGroup& group, bool async)
    : dir_(std::move(dir)),
      tag_(std::move(tag)),
      manifest_{states.dtype(),
                OfParams(model, &ParamSpec::shape),
                OfParams(model, &ParamSpec::linears),
                {},
                notes.engine,
                notes.client_state},
      group_(&group) {
  std::erase_if(manifest_.linears, [](const auto& of_param) { return of_param.second.empty(); });
  CheckSameTag(tag_, group);
  CheckTag(tag_);
  CheckClientState(notes.client_state);
  const std::string folder = dir_ + "/" + tag_;
  RunTogether(group, kSaving, [&] {
    if (group.rank() != 0) return;
    MakeWritableFolder(dir_);
    RemoveLeftovers(dir_);
    MakeWritableFolder(folder);
    revision_ = FreeRevision(folder);
  });
  revision_ = static_cast<int>(FromRank(group, 0, revision_));
  RunTogether(group, kSaving, [&] {
    file_ = WriteRankFile(folder + "/" + RankFileName(group.rank(), revision_), model, states);
  });
  on_disk_ = std::async(async ? std::launch::async : std::launch::deferred,
                        [file = file_.get()] { file->Commit(); });
}

bool CheckpointSave::Finish(bool wait) {
  constexpr std::chrono::seconds kNow{0};
  const auto is_missing = [&] { return on_disk_.wait_for(kNow) != std::future_status::ready; };
  if (!wait && group_->MaxScalar(is_missing() ? 1 : 0) > 0) return false;
  RunTogether(*group_, kSaving, [&] { on_disk_.get(); });
  manifest_.files = ExchangeSums(*file_, revision_, *group_);
  RunTogether(*group_, kSaving, [&] {
    if (group_->rank() == 0) Publish(dir_, tag_, manifest_);
  });
  return true;
}

CheckpointNotes LoadCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                               UnitStates& states, const std::string& optimizer,
                               ProcessGroup& group) {
  CheckpointManifest manifest;
  std::string folder;
  RunTogether(group, kLoading, [&] {
    folder = dir + "/" + ResolveTag(dir, tag);
    manifest = ReadManifest(folder);
    CheckFits(manifest, folder, model, states, optimizer);
    VerifyShare(manifest, folder, group);
  });
  RunTogether(group, kLoading, [&] { ReadRankFiles(folder, manifest, model, states); });
  return {std::move(manifest.engine), std::move(manifest.client_state)};
}

void Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen,
                    const Model& model, UnitStates& states, int data_parallel_size,
                    ProcessGroup& group) {
  const std::vector<int> units = SavedUnits(model, exclude_frozen);
  std::unique_ptr<PublishedWriter> out;
  RunTogether(group, kExporting, [&] {
    if (name.empty() || name.find('/') != name.npos) {
      Throw(ErrorCode::kInvalidArgument, "saving the model as \"{}\": expected a file name",
            Printable(name));
    }
    CheckPublishedName(name);
    if (group.rank() == 0) out = Open(dir, name, model, states.dtype(), units);
  });
  ModelWriter writer(model, states, data_parallel_size, group, out.get());
  for (const int u : units)
    writer.Write(u);
  RunTogether(group, kExporting,
              [&] { writer.Rethrow(); });  // Before a file with holes has a name.
  RunTogether(group, kExporting, [&] {
    if (out) out->Commit();
  });
}

}  // namespace dsat::engine
