// Converts structs to JSON and back by one list of their fields, which the writer and the reader
// share.
//
// For a struct there is a function template VisitFields(visitor, struct) that calls
// visitor("name", field) for every field; DSAT_FIELDS(struct, names...) defines one. When a struct
// is read, a field that is absent in the JSON keeps its default, so that a new field does not make
// older JSON unreadable; a key that is not a field is an error. Included by implementations only.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/json.h"

// Defines VisitFields for a struct whose fields are written by their own names, 63 at the most. A
// list that is not of all fields does not compile.
#define DSAT_FIELDS(Struct, ...)                                  \
  [[maybe_unused]] static void ListsAllOf(const Struct& object) { \
    [[maybe_unused]] const auto& [__VA_ARGS__] = object;          \
  }                                                               \
  DSAT_SOME_FIELDS(Struct, __VA_ARGS__)
// The same for a struct of which some fields are not written.
#define DSAT_SOME_FIELDS(Struct, ...)                   \
  template <typename Visitor, typename T>               \
  requires std::same_as<std::remove_const_t<T>, Struct> \
  void VisitFields(Visitor& visit, T& object) {         \
    DSAT_VISIT_FIELDS(__VA_ARGS__)                      \
  }
// The body of such a function, for a struct that has more.
#define DSAT_VISIT_FIELDS(...) \
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(DSAT_VISIT_FIELD, __VA_ARGS__))
#define DSAT_VISIT_FIELD(name) visit(#name, object.name);

namespace dsat::fields {

template <typename T>
Json Encode(const T& value);

class Writer {
 public:
  explicit Writer(Json& out) : out_(out) {}
  template <typename T>
  void operator()(const char* name, const T& field) {
    out_[name] = Encode(field);
  }

 private:
  Json& out_;
};

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {};

// A struct has a VisitFields, and a duration is the number of its units; all other types are
// converted by nlohmann's library.
template <typename T>
Json Encode(const T& value) {
  if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? Encode(*value) : Json();
  } else if constexpr (IsList<T>::value) {
    Json out = Json::array();
    for (const auto& item : value)
      out.push_back(Encode(item));
    return out;
  } else if constexpr (requires(Writer & writer) { VisitFields(writer, value); }) {
    Json out = Json::object();
    Writer writer(out);
    VisitFields(writer, value);
    return out;
  } else if constexpr (requires { value.count(); }) {
    return value.count();
  } else {
    return value;
  }
}

template <typename T>
void Decode(const Json& json, const std::string& what, T& value);

class Reader {
 public:
  Reader(const Json& json, const std::string& what) : json_(json), what_(what) {}
  template <typename T>
  void operator()(const char* name, T& field) {
    names_.push_back(name);
    auto found = json_.find(name);
    if (found != json_.end()) Decode(*found, what_ + "/" + name, field);
  }
  // Throws if the JSON has a key that is not a field.
  void Finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(names_.begin(), names_.end(), key) == names_.end()) {
        Throw(ErrorCode::kInvalidArgument, "{}: unknown key /{}; it was made by a newer dsat",
              what_, key);
      }
    }
  }

 private:
  const Json& json_;
  const std::string& what_;
  std::vector<std::string> names_;
};

// Whether `json` has the type of a T. Integers must be integers: nlohmann's own conversion would
// truncate 5.5 to 5. Other types than these have a from_json that throws an Error.
template <typename T>
bool Fits(const Json& json) {
  if constexpr (std::same_as<T, bool>) {
    return json.is_boolean();
  } else if constexpr (std::integral<T>) {
    return json.is_number_integer();
  } else if constexpr (std::floating_point<T>) {
    return json.is_number();
  } else {
    return !std::same_as<T, std::string> || json.is_string();
  }
}

template <typename T>
void Decode(const Json& json, const std::string& what, T& value) {
  const auto expect = [&](bool fits, const char* type) {
    if (fits) return;
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected {}", what, JsonTypeName(json), type);
  };
  if constexpr (requires { value.has_value(); }) {
    if (json.is_null()) return value.reset();
    Decode(json, what, value.emplace());
  } else if constexpr (IsList<T>::value) {
    expect(json.is_array(), "a list");
    value.clear();
    for (const Json& item : json) {
      value.emplace_back();
      Decode(item, fmt::format("{}/{}", what, value.size() - 1), value.back());
    }
  } else if constexpr (requires { typename T::mapped_type; }) {
    expect(json.is_object(), "an object");
    value.clear();
    for (const auto& [key, item] : json.items())
      Decode(item, what + "/" + key, value[key]);
  } else if constexpr (requires { value.count(); }) {
    int64_t count = 0;
    Decode(json, what, count);
    value = T(count);
  } else if constexpr (requires(Reader & reader) { VisitFields(reader, value); }) {
    expect(json.is_object(), "an object");
    Reader reader(json, what);
    VisitFields(reader, value);
    reader.Finish();
  } else if (Fits<T>(json)) {
    value = json.get<T>();
  } else {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected another type", what, json.dump());
  }
}

template <typename T>
T DecodeAs(const Json& json, const std::string& what) {
  T value;
  Decode(json, what, value);
  return value;
}

}  // namespace dsat::fields
