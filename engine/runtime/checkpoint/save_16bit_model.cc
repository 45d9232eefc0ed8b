// The model's parameters as one file in the type that it trains in.
#include "engine/runtime/checkpoint/save_16bit_model.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/files.h"
#include "engine/comm/run_together.h"
#include "engine/files/published.h"
#include "engine/model/hugging_face.h"

namespace dsat::engine {
namespace {

constexpr char kSaving[] = "saving the model";
constexpr int64_t kBlockElems = 1 << 20;

// The units whose parameters are to be in the file.
std::vector<int> SavedUnits(const Model& model, bool exclude_frozen) {
  std::vector<int> units;
  for (size_t u = 0; u < model.layers.size(); ++u) {
    const bool frozen = !model.frozen.empty() && model.frozen[u];
    const bool empty = model.layers[u]->params().empty();
    if (!empty && !(frozen && exclude_frozen)) units.push_back(static_cast<int>(u));
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

// A rank on which something goes wrong takes part to the end: nobody may be left waiting for it.
class FirstFailure {
 public:
  template <typename Work>
  void Try(const Work& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void Rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

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
  void Rethrow() const { failure_.Rethrow(); }

 private:
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
    failure_.Try([&] {
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
    failure_.Try([&] {
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
  FirstFailure failure_;
};

}  // namespace

void Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen,
                    const Model& model, UnitStates& states, int data_parallel_size,
                    ProcessGroup& group) {
  const std::vector<int> units = SavedUnits(model, exclude_frozen);
  std::unique_ptr<PublishedWriter> out;
  RunTogether(group, kSaving, [&] {
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
  RunTogether(group, kSaving, [&] { writer.Rethrow(); });  // Before a file with holes has a name.
  RunTogether(group, kSaving, [&] {
    if (out) out->Commit();
  });
}

}  // namespace dsat::engine
