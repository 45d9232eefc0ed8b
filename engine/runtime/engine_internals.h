// The internals of an engine that predictions and tests use.
#pragma once

#include <functional>

#include "engine/io/async_file.h"
#include "engine/plan/plan.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

class EngineInternals {
 public:
  explicit EngineInternals(const Engine& engine) : engine_(engine) {}

  const Plan& plan() const;
  UnitStates& states() const;
  // The bytes that this rank has moved to and from disk so far.
  AioTraffic disk_traffic() const;
  // From the next step on `around` is called in place of every instruction, which it runs by
  // calling `run` once. nullptr: no longer. It replaces a trace, and a trace replaces it.
  void set_around(
      std::function<void(const Instruction&, const std::function<void()>& run)> around) const;

 private:
  const Engine& engine_;
};

}  // namespace dsat::engine
