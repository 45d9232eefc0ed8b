// An experiment file as JSON with line numbers.
#ifndef DSAT_SEARCHER_INPUT_DOCUMENT_H_
#define DSAT_SEARCHER_INPUT_DOCUMENT_H_

#include <map>
#include <string>

#include "base/json.h"

namespace dsat {

struct ExperimentDocument {
  std::string path;                  // As given by the user, for messages.
  Json root;                         // An object.
  std::map<std::string, int> lines;  // JSON pointer -> line, counted from 1.

  // "<path>:<line>: <pointer>", with the line of the nearest enclosing key if the key does not
  // exist.
  std::string Place(const std::string& pointer) const;
  // Throws kInvalidArgument "<path>:<line>: <pointer> <message>".
  [[noreturn]] void Fail(const std::string& pointer, const std::string& message) const;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_DOCUMENT_H_
