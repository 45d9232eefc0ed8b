// JSON as every part of dsat reads, merges and writes it.
#ifndef DSAT_BASE_JSON_H_
#define DSAT_BASE_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace dsat {

// Objects keep their keys sorted, so that equal values print equally.
using Json = nlohmann::json;

// Parses JSON as people write it: //, /* */ and # comments and trailing commas are allowed, as
// DeepSpeed's own reader allows them; duplicate keys are refused.
// Throws kInvalidArgument "<source>:<line>:<column>: ..." if `text` is not JSON.
Json ParseTolerantJson(std::string_view text, const std::string& source);

// Reads and parses a file with ParseTolerantJson. Throws kNotFound or kPermissionDenied by name.
Json ReadJsonFile(const std::string& path);

// Writes strict JSON, indented by 2, with a final newline; atomically, as WriteFileAtomic.
void WriteJsonFile(const std::string& path, const Json& value);

// Overlays `overlay` on `base` key by key: objects merge recursively, all else replaces. The one
// merge rule of dsat (the experiment file's overwrite_deepspeed_args, trial assignments).
void MergeJson(Json& base, const Json& overlay);

// Sets the value at a JSON pointer ("/zero_optimization/stage"), creating the objects on the way.
// Throws kInvalidArgument if the pointer is malformed or passes through a value that is no object.
void SetAtPointer(Json& object, const std::string& pointer, const Json& value);

// The value at a JSON pointer, or nullptr if there is none.
const Json* FindAtPointer(const Json& object, const std::string& pointer);

// The whole number in `value`, also if it is written 5e8; nullopt for all else.
std::optional<int64_t> WholeNumber(const Json& value);

// The JSON type of `value` in words a user knows: "a number", "an object", ...
std::string JsonTypeName(const Json& value);

}  // namespace dsat

#endif  // DSAT_BASE_JSON_H_
