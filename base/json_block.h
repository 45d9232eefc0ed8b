// Reads an object of a user's file key by key and checks the values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace dsat {

// Refers to the object, which must outlive it. Every method throws kInvalidArgument naming the key,
// the value and what is expected. `what` is the JSON pointer of the block ("/model").
class JsonBlock {
 public:
  // Throws if `object` is not a JSON object.
  JsonBlock(const Json& object, std::string what);

  // Throws if a key is not in `known`, naming it and the most similar known key.
  void CheckKeys(const std::vector<std::string>& known) const;

  bool Has(const std::string& key) const { return object_.contains(key); }
  // The value of a required key.
  const Json& At(const std::string& key) const;
  // A whole number in [min, max], or `fallback` if the key is absent.
  int64_t Int(const std::string& key, int64_t fallback, int64_t min, int64_t max) const;
  // A number in [min, max], or `fallback` if the key is absent.
  double Number(const std::string& key, double fallback, double min, double max) const;
  // true or false, or `fallback` if the key is absent.
  bool Bool(const std::string& key, bool fallback) const;
  // The value of a required key, which is one of `words`; the error names the most similar word.
  std::string Word(const std::string& key, const std::vector<std::string>& words) const;
  // The JSON pointer of a key: "/model/n_embd".
  std::string PointerTo(std::string_view key) const;

 private:
  const Json& object_;
  std::string what_;
};

// A whole number in [min, max]. `what` is its JSON pointer. Throws as JsonBlock.
int64_t IntInRange(const Json& value, int64_t min, int64_t max, const std::string& what);

}  // namespace dsat
