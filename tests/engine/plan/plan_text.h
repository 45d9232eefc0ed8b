// Plans as text.
#pragma once

#include <fmt/format.h>

#include <string>

#include "engine/plan/plan.h"

namespace dsat::engine {

// A line for each transfer and each instruction.
inline std::string PlanText(const Plan& plan) {
  std::string text;
  for (const Transfer& transfer : plan.transfers)
    text += fmt::format("t{}: {}\n", &transfer - plan.transfers.data(), ToString(transfer));
  for (const Instruction& instruction : plan.instructions)
    text += ToString(instruction) + "\n";
  return text;
}

}  // namespace dsat::engine
