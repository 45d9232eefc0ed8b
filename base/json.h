// Reads, merges and writes JSON, for all parts of dsat.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsat {

// Objects keep their keys sorted, so that equal values have equal text.
using Json = nlohmann::json;

// Parses JSON in which //, /* */ and # comments and trailing commas are allowed, as DeepSpeed
// allows them. Duplicate keys are errors. Throws kInvalidArgument "<source>:<line>:<column>: ..."
// if `text` is not JSON.
Json ParseTolerantJson(std::string_view text, const std::string& source);

// Reads and parses a file with ParseTolerantJson. Also throws as ReadFile.
Json ReadJsonFile(const std::string& path);

// Writes strict JSON, indented by 2, with a final newline. The write is atomic (WriteFileAtomic).
void WriteJsonFile(const std::string& path, const Json& value);

// Overlays `overlay` on `base` key by key: objects are merged recursively, all other values are
// replaced. The experiment file's overwrite_deepspeed_args and trial assignments are merged in this
// way.
void MergeJson(Json& base, const Json& overlay);

// Sets the value at a JSON pointer ("/zero_optimization/stage"). Missing objects, and nulls in
// place of an object, become objects. Throws kInvalidArgument if the pointer is malformed or if a
// value above it is not an object.
void SetAtPointer(Json& object, const std::string& pointer, const Json& value);

// The value at a JSON pointer, or nullptr if there is none. Throws kInvalidArgument if the pointer
// is malformed.
const Json* FindAtPointer(const Json& object, const std::string& pointer);

// The integer in `value`, which may be written as 5e8; nullopt if it is not an integer or too
// large.
std::optional<int64_t> WholeNumber(const Json& value);

// The library's text about an error, without its number.
std::string JsonMessage(const Json::exception& error);

// The JSON type of `value` for messages: "a number", "an object", ...
std::string JsonTypeName(const Json& value);

// The integer in `json`. The library's own conversion makes 5 of 5.5 and is undefined for 1e300.
// Throws Json::type_error for everything that is not written as an integer.
inline int64_t IntegerIn(const Json& json) {
  return json.get_ref<const Json::number_integer_t&>();
}

// The integers of an array. Throws as IntegerIn.
inline std::vector<int64_t> IntegersIn(const Json& json) {
  std::vector<int64_t> integers;
  for (const Json& item : json.get_ref<const Json::array_t&>())
    integers.push_back(IntegerIn(item));
  return integers;
}

}  // namespace dsat
