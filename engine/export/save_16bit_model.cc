// The model's parameters as one file in the type that it trains in.
#include "engine/export/save_16bit_model.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/files.h"
#include "engine/comm/run_together.h"
#include "engine/export/tensor_file.h"

namespace dsat::engine {
namespace {

constexpr char kSaving[] = "saving the model";
constexpr int64_t kBlockElems = 1 << 20;

// The units whose parameters are to be in the file.
std::vector<int> SavedUnits(const Model& model, bool exclude_frozen) {
  std::vector<int> units;
  for (size_t u = 0; u < model.layers.size(); ++u) {
    const bool frozen = !model.frozen.empty() && model.frozen[u];
    if (!frozen || !exclude_frozen) units.push_back(static_cast<int>(u));
  }
  return units;
}

std::unique_ptr<TensorFileWriter> Open(const std::string& dir, const std::string& name,
                                       const Model& model, const UnitStates& states,
                                       const std::vector<int>& units) {
  std::vector<TensorSpec> specs;
  for (const int u : units) {
    for (const ParamSpec& spec : model.layers[static_cast<size_t>(u)]->params())
      specs.push_back({spec.name, states.dtype(), spec.shape});
  }
  MakeWritableFolder(dir);
  const std::string format = name.ends_with(".safetensors") ? "safetensors" : "bin";
  return MakeTensorFileWriter(format, dir + "/" + name, std::move(specs));
}

// Gives `on_block` all of a unit on rank 0, front to back, as (first element, elements). Every rank
// takes part.
using OnBlock = std::function<void(int64_t begin, const Tensor& block)>;
void ForBlocksOnRank0(const Tensor& home, bool sharded, ProcessGroup& group,
                      const OnBlock& on_block) {
  if (group.rank() == 0) on_block(0, home);
  if (!sharded) return;
  std::vector<char> room(static_cast<size_t>(kBlockElems * BytesPerElem(home.dtype)));
  for (int peer = 1; peer < group.size(); ++peer) {
    for (int64_t begin = 0; begin < home.num_elems; begin += kBlockElems) {
      const int64_t count = std::min(kBlockElems, home.num_elems - begin);
      if (group.rank() == peer) {
        const Tensor block = home.Slice(begin, count);
        group.Send(block.data, block.bytes(), 0);
      } else if (group.rank() == 0) {
        const Tensor block{room.data(), count, home.dtype};
        group.Recv(block.data, block.bytes(), peer);
        on_block(peer * home.num_elems + begin, block);
      }
    }
  }
}

// Writes what `block`, which begins at element `begin` of the unit, has of the unit's parameters:
// all but the padding between them.
void WriteBlock(const Layer& layer, const UnitLayout& layout, int64_t begin, const Tensor& block,
                TensorFileWriter& out) {
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    const int64_t from = std::max(begin, layout.offsets[i]);
    const int64_t to =
        std::min(begin + block.num_elems, layout.offsets[i] + layer.params()[i].NumElems());
    if (from < to) out.Write(block.Slice(from - begin, to - from));
  }
}

}  // namespace

void Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen,
                    const Model& model, UnitStates& states, ProcessGroup& group) {
  const std::vector<int> units = SavedUnits(model, exclude_frozen);
  std::unique_ptr<TensorFileWriter> out;
  RunTogether(group, kSaving, [&] {
    if (name.empty() || name.find('/') != name.npos) {
      Throw(ErrorCode::kInvalidArgument, "saving the model as \"{}\": expected a file's name",
            Printable(name));
    }
    if (group.rank() == 0) out = Open(dir, name, model, states, units);
  });
  std::exception_ptr failure;  // Rank 0 receives on: nobody may be left waiting.
  for (const int u : units) {
    const Layer& layer = *model.layers[static_cast<size_t>(u)];
    const auto write = [&](int64_t begin, const Tensor& block) {
      if (failure) return;
      try {
        WriteBlock(layer, states.unit(u).layout, begin, block, *out);
      } catch (...) {
        failure = std::current_exception();
      }
    };
    states.Visit(u, UnitStates::Access::kRead, [&](const StatePart& part) {
      if (part.state == "param") ForBlocksOnRank0(part.data, states.IsSharded(u), group, write);
    });
  }
  RunTogether(group, kSaving, [&] {
    if (failure) std::rethrow_exception(failure);
    if (out) out->Commit();
  });
}

}  // namespace dsat::engine
