// Checkpoints that load at any number of ranks and any ZeRO stage.
#include "engine/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "engine/safetensors.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

constexpr char kFormat[] = "dsat-checkpoint-1";

// One state vector of a unit as it rests here: elements [begin, begin + data.num_elems) of the
// unit.
struct Resting {
  std::string state;
  int64_t begin = 0;
  Tensor data;
};

std::vector<Resting> RestingStates(const UnitStates& states, int u) {
  std::vector<Resting> resting;
  resting.push_back({"param", states.ParamBegin(u), states.ParamAtHome(u)});
  const OptimizerView view = states.Optimizer(u);
  const int64_t begin = states.OptimizerBegin(u);
  if (states.unit(u).master) resting.push_back({"master", begin, view.master});
  for (size_t i = 0; i < view.moments.size(); ++i) {
    resting.push_back({fmt::format("moment{}", i), begin, view.moments[i]});
  }
  return resting;
}

// Elements [begin, end) of a parameter, as they rest in `data`.
struct Piece {
  std::string name;  // "<state>/<parameter>"
  int64_t begin = 0;
  Tensor data;
};

// The pieces of a unit's state that lie in elements [begin, end) of the unit and rest here.
std::vector<Piece> PiecesIn(const Layer& layer, const UnitStates& states, int u, int64_t begin,
                            int64_t end) {
  std::vector<Piece> pieces;
  const auto& specs = layer.params();
  if (specs.empty()) return pieces;
  for (const Resting& resting : RestingStates(states, u)) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const int64_t param_begin = states.unit(u).layout.offsets[i];
      const int64_t from = std::max({begin, resting.begin, param_begin});
      const int64_t to = std::min(
          {end, resting.begin + resting.data.num_elems, param_begin + specs[i].NumElems()});
      if (from >= to) continue;
      pieces.push_back({resting.state + "/" + specs[i].name, from - param_begin,
                        resting.data.Slice(from - resting.begin, to - from)});
    }
  }
  return pieces;
}

std::string RankFile(const std::string& folder, int64_t rank) {
  return fmt::format("{}/rank_{:05}.safetensors", folder, rank);
}

void WriteRankFile(const std::string& path, const Model& model, const UnitStates& states,
                   int rank) {
  std::map<std::string, std::string> begins;
  std::vector<NamedTensor> tensors;
  for (int u = 0; u < states.num_units(); ++u) {
    const int64_t slice = states.SliceElems(u);
    for (const Piece& piece :
         PiecesIn(*model.layers[u], states, u, rank * slice, (rank + 1) * slice)) {
      begins[piece.name] = std::to_string(piece.begin);
      tensors.push_back({piece.name, piece.data});
    }
  }
  WriteSafetensors(path, begins, tensors);
}

Json ShapesOf(const Model& model) {
  Json shapes = Json::object();
  for (const auto& layer : model.layers) {
    for (const ParamSpec& spec : layer->params())
      shapes[spec.name] = spec.shape;
  }
  return shapes;
}

Json ToJson(const LossScalerState& state) {
  return {{"scale", state.scale},
          {"iteration", state.iteration},
          {"last_overflow", state.last_overflow},
          {"hysteresis", state.hysteresis}};
}

LossScalerState LossScalerFrom(const Json& json) {
  return {.scale = json.at("scale"),
          .iteration = json.at("iteration"),
          .last_overflow = json.at("last_overflow"),
          .hysteresis = json.at("hysteresis")};
}

Json Manifest(const Model& model, const UnitStates& states, const Progress& progress,
              int world_size) {
  return {{"format", kFormat},
          {"world_size", world_size},
          {"dtype", Name(states.dtype())},
          {"num_steps", progress.num_steps},
          {"num_skipped_steps", progress.num_skipped_steps},
          {"loss_scaler", ToJson(progress.loss_scaler)},
          {"parameters", ShapesOf(model)}};
}

// Makes a finished folder appear under its name; one of that name goes.
void Publish(const std::string& temporary, const std::string& folder) {
  const std::string old = folder + ".old";
  fs::remove_all(old);
  if (fs::exists(folder)) fs::rename(folder, old);
  fs::rename(temporary, folder);
  fs::remove_all(old);
}

void CheckManifest(const Json& manifest, const std::string& path, const Model& model,
                   const UnitStates& states) {
  if (manifest.value("format", "") != kFormat) {
    Throw(ErrorCode::kInvalidArgument, "{}: not a dsat checkpoint", path);
  }
  if (manifest.at("dtype") != Name(states.dtype())) {
    Throw(ErrorCode::kInvalidArgument, "{}: /dtype is {}; the model runs in {}", path,
          manifest.at("dtype").dump(), Name(states.dtype()));
  }
  if (manifest.at("parameters") != ShapesOf(model)) {
    Throw(ErrorCode::kInvalidArgument, "{}: /parameters are not those of this model ({})", path,
          model.description);
  }
}

// Copies what `file` has of the piece; gives the number of elements.
int64_t ReadPiece(SafetensorsFile& file, const std::string& path, const Piece& piece) {
  const SafetensorsFile::Entry* entry = file.Find(piece.name);
  if (entry == nullptr) return 0;
  if (entry->dtype != piece.data.dtype) {
    Throw(ErrorCode::kDataLoss, "{}: {} has another dtype than the manifest says", path,
          piece.name);
  }
  const int64_t saved_begin = std::stoll(file.metadata().at(piece.name));
  const int64_t from = std::max(saved_begin, piece.begin);
  const int64_t to = std::min(saved_begin + entry->num_elems, piece.begin + piece.data.num_elems);
  if (from >= to) return 0;
  file.Read(*entry, from - saved_begin, piece.data.Slice(from - piece.begin, to - from));
  return to - from;
}

void ReadRankFiles(const std::string& folder, int64_t num_files, const Model& model,
                   const UnitStates& states) {
  std::vector<SafetensorsFile> files;
  for (int64_t r = 0; r < num_files; ++r)
    files.emplace_back(RankFile(folder, r));
  for (int u = 0; u < states.num_units(); ++u) {
    for (const Piece& piece :
         PiecesIn(*model.layers[u], states, u, 0, states.unit(u).layout.num_elems)) {
      int64_t num_read = 0;
      for (int64_t r = 0; r < num_files; ++r) {
        num_read += ReadPiece(files[r], RankFile(folder, r), piece);
      }
      if (num_read != piece.data.num_elems) {
        Throw(ErrorCode::kDataLoss,
              "{}: {} of {} elements of {} are there; was it saved with this "
              "optimizer?",
              folder, num_read, piece.data.num_elems, piece.name);
      }
    }
  }
}

}  // namespace

void SaveCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                    const UnitStates& states, const Progress& progress, ProcessGroup& group) {
  const std::string folder = dir + "/" + tag;
  const std::string temporary = folder + ".tmp";
  if (group.rank() == 0) {
    MakeWritableFolder(dir);
    fs::remove_all(temporary);
    MakeWritableFolder(temporary);
  }
  group.Barrier();
  WriteRankFile(RankFile(temporary, group.rank()), model, states, group.rank());
  group.Barrier();
  if (group.rank() == 0) {
    WriteJsonFile(temporary + "/manifest.json", Manifest(model, states, progress, group.size()));
    Publish(temporary, folder);
    WriteFileAtomic(dir + "/latest", tag + "\n");
  }
  group.Barrier();
}

Progress LoadCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                        UnitStates& states) {
  std::string name = tag.empty() ? ReadFile(dir + "/latest") : tag;
  name.erase(name.find_last_not_of(" \n") + 1);
  const std::string folder = dir + "/" + name;
  const std::string path = folder + "/manifest.json";
  const Json manifest = ReadJsonFile(path);
  CheckManifest(manifest, path, model, states);
  ReadRankFiles(folder, manifest.at("world_size"), model, states);
  return {.num_steps = manifest.at("num_steps"),
          .num_skipped_steps = manifest.at("num_skipped_steps"),
          .loss_scaler = LossScalerFrom(manifest.at("loss_scaler"))};
}

}  // namespace dsat::engine
