// The places of an experiment file that messages name.
#include "searcher/input/document.h"

#include <fmt/format.h>

#include "base/error.h"

namespace dsat {

std::string ExperimentDocument::Place(const std::string& pointer) const {
  std::string known = pointer;
  while (!known.empty() && !lines.contains(known))
    known.erase(known.rfind('/'));
  auto line = lines.find(known);
  return fmt::format("{}:{}: {}", path, line == lines.end() ? 1 : line->second, pointer);
}

void ExperimentDocument::Fail(const std::string& pointer, const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", Place(pointer), message));
}

}  // namespace dsat
