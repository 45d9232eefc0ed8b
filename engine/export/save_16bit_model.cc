// The model's parameters as one file in the type that it trains in.
#include "engine/export/save_16bit_model.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/files.h"
#include "engine/comm/run_together.h"
#include "engine/export/tensor_file.h"

namespace dsat::engine {
namespace {

constexpr char kSaving[] = "saving the model";

void WriteUnit(const Layer& layer, const UnitLayout& layout, const Tensor& whole,
               TensorFileWriter& out) {
  for (size_t i = 0; i < layout.offsets.size(); ++i)
    out.Write(whole.Slice(layout.offsets[i], layer.params()[i].NumElems()));
}

}  // namespace

ModelSaver::~ModelSaver() {
  arena_.Discharge(bucket_.bytes);
}

bool ModelSaver::IsSharded(int u) const {
  return states_.IsSharded(u);
}

bool ModelSaver::IsSaved(int u, bool exclude_frozen) const {
  const bool frozen = !model_.frozen.empty() && model_.frozen[static_cast<size_t>(u)];
  return !model_.layers[static_cast<size_t>(u)]->params().empty() && !(frozen && exclude_frozen);
}

void ModelSaver::ReserveBucket() {
  int64_t num_elems = 0;
  for (int u = 0; u < states_.num_units(); ++u) {
    if (IsSharded(u)) num_elems = std::max(num_elems, states_.unit(u).layout.num_elems);
  }
  const int64_t bytes = num_elems * BytesPerElem(states_.dtype());
  if (bucket_.bytes == bytes) return;
  bool charged = false;
  try {
    RunTogether(group_, kSaving, [&] {
      arena_.Charge(bytes, "gathering a unit to save it");
      charged = true;
    });
    bucket_ = group_.Allocate(bytes);
  } catch (...) {
    if (charged) arena_.Discharge(bytes);
    throw;
  }
}

Tensor ModelSaver::Whole(int u) {
  if (!IsSharded(u)) return states_.Param(u);
  const int64_t slice_elems = states_.SliceElems(u);
  const Tensor whole{bucket_.data, slice_elems * group_.size(), states_.dtype()};
  states_.Visit(u, UnitStates::Access::kRead, [&](const StatePart& part) {
    if (part.state != "param") return;
    const Tensor mine = whole.Slice(slice_elems * group_.rank(), slice_elems);
    std::memcpy(mine.data, part.data.data, static_cast<size_t>(mine.bytes()));
  });
  group_.AllGather(bucket_, states_.dtype(), slice_elems);
  return whole;
}

void ModelSaver::Save(const std::string& dir, const std::string& name, bool exclude_frozen) {
  ReserveBucket();
  std::unique_ptr<TensorFileWriter> out;
  RunTogether(group_, kSaving, [&] {
    if (name.empty() || name.find('/') != name.npos) {
      Throw(ErrorCode::kInvalidArgument, "saving the model as \"{}\": expected a file's name",
            Printable(name));
    }
    if (group_.rank() != 0) return;
    std::vector<TensorSpec> specs;
    for (int u = 0; u < states_.num_units(); ++u) {
      if (!IsSaved(u, exclude_frozen)) continue;
      for (const ParamSpec& spec : model_.layers[static_cast<size_t>(u)]->params())
        specs.push_back({spec.name, states_.dtype(), spec.shape});
    }
    MakeWritableFolder(dir);
    const std::string format = name.ends_with(".safetensors") ? "safetensors" : "bin";
    out = MakeTensorFileWriter(format, dir + "/" + name, std::move(specs));
  });
  std::exception_ptr failure;  // The others gather on: nobody may be left waiting.
  for (int u = 0; u < states_.num_units(); ++u) {
    if (!IsSaved(u, exclude_frozen)) continue;
    const Tensor whole = Whole(u);
    if (!out || failure) continue;
    try {
      WriteUnit(*model_.layers[static_cast<size_t>(u)], states_.unit(u).layout, whole, *out);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  RunTogether(group_, kSaving, [&] {
    if (failure) std::rethrow_exception(failure);
    if (out) out->Commit();
  });
}

}  // namespace dsat::engine
