// Converts structs to JSON and back by one list of their fields, which the writer and the reader
// share.
//
// For a struct there is a function template VisitFields(visitor, struct) that calls
// visitor("name", field) for every field; DSAT_FIELDS(struct, names...) defines one. When a struct
// is read, a field that is absent in the JSON keeps its default, so that a new field does not make
// older JSON unreadable; a key that is not a field is an error. Included by implementations only.
#ifndef DSAT_BASE_FIELDS_H_
#define DSAT_BASE_FIELDS_H_

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/json.h"

// Defines VisitFields for a struct whose fields are written by their own names, 63 at the most.
#define DSAT_FIELDS(Struct, ...)                                             \
  template <typename Visitor, typename T>                                    \
  requires std::same_as<std::remove_const_t<T>, Struct>                      \
  void VisitFields(Visitor& visit, T& object) {                              \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(DSAT_VISIT_FIELD, __VA_ARGS__)) \
  }
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
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
struct IsListOfStructs : std::false_type {};
template <typename T>
requires requires(Writer& writer, const T& value) {
  VisitFields(writer, value);
}
struct IsListOfStructs<std::vector<T>> : std::true_type {};

// A struct has a VisitFields, and a duration is the number of its units; all other types are
// converted by nlohmann's library.
template <typename T>
Json Encode(const T& value) {
  if constexpr (IsOptional<T>::value) {
    return value.has_value() ? Encode(*value) : Json();
  } else if constexpr (IsListOfStructs<T>::value) {
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

// Integers must be integers: nlohmann's own conversion would truncate 5.5 to 5.
inline bool Fits(const Json& json, const bool*) {
  return json.is_boolean();
}
inline bool Fits(const Json& json, const std::string*) {
  return json.is_string();
}
inline bool Fits(const Json& json, const double*) {
  return json.is_number();
}
inline bool Fits(const Json& json, const int64_t*) {
  return json.is_number_integer();
}
inline bool Fits(const Json& json, const int*) {
  return json.is_number_integer();
}
inline bool Fits(const Json&, const Json*) {
  return true;
}
template <typename T>
bool Fits(const Json& json, const std::map<std::string, T>*) {
  return json.is_object() && std::all_of(json.begin(), json.end(), [](const Json& item) {
           return Fits(item, static_cast<const T*>(nullptr));
         });
}
template <typename T>
requires(!IsListOfStructs<std::vector<T>>::value) bool Fits(const Json& json,
                                                            const std::vector<T>*) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    if (!Fits(item, static_cast<const T*>(nullptr))) return false;
  }
  return true;
}

template <typename T>
void DecodeStruct(const Json& json, const std::string& what, T& value);

template <typename T>
void Decode(const Json& json, const std::string& what, T& value) {
  if constexpr (IsOptional<T>::value) {
    if (json.is_null()) return value.reset();
    Decode(json, what, value.emplace());
  } else if constexpr (IsListOfStructs<T>::value) {
    if (!json.is_array())
      Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list", what, JsonTypeName(json));
    for (const Json& item : json)
      Decode(item, what, value.emplace_back());
  } else if constexpr (requires { Fits(json, &value); }) {
    if (!Fits(json, &value)) {
      Throw(ErrorCode::kInvalidArgument, "{} is {}; expected another type", what, json.dump());
    }
    value = json.get<T>();
  } else if constexpr (requires { value.count(); }) {
    int64_t count = 0;
    Decode(json, what, count);
    value = T(count);
  } else {
    DecodeStruct(json, what, value);
  }
}

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

template <typename T>
void DecodeStruct(const Json& json, const std::string& what, T& value) {
  if (!json.is_object()) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected an object", what, JsonTypeName(json));
  }
  Reader reader(json, what);
  VisitFields(reader, value);
  reader.Finish();
}

}  // namespace dsat::fields

#endif  // DSAT_BASE_FIELDS_H_
