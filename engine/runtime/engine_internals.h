// The internals of an engine that predictions and tests use.
#pragma once

#include <functional>

#include "engine/plan/plan.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

class EngineInternals {
 public:
  explicit EngineInternals(const Engine& engine) : engine_(engine) {}

  const Plan& plan() const;
  UnitStates& states() const;
  // Calls `on_done` after each instruction, in place of Engine::set_on_work.
  void set_on_done(std::function<void(const Instruction&)> on_done) const;

 private:
  const Engine& engine_;
};

}  // namespace dsat::engine
