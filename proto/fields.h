// Converts structs to JSON and back by one list of their fields, which the writer and the reader
// share.
//
// For a struct there is a function template VisitFields(visitor, struct) that calls
// visitor("name", field) for every field. When a struct is read, a field that is absent in the JSON
// keeps its default, so that a new field does not make older JSON unreadable; a key that is not a
// field is an error. Used inside proto/ only.
#ifndef DSAT_PROTO_FIELDS_H_
#define DSAT_PROTO_FIELDS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/json.h"

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

// A struct has a VisitFields; all other types are converted by nlohmann's library.
template <typename T>
Json Encode(const T& value) {
  if constexpr (IsOptional<T>::value) {
    return value.has_value() ? Encode(*value) : Json();
  } else if constexpr (requires(Writer & writer) { VisitFields(writer, value); }) {
    Json out = Json::object();
    Writer writer(out);
    VisitFields(writer, value);
    return out;
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
inline bool Fits(const Json& json, const std::map<std::string, std::string>*) {
  return json.is_object() &&
         std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_string(); });
}
template <typename T>
bool Fits(const Json& json, const std::vector<T>*) {
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
  } else if constexpr (requires { Fits(json, &value); }) {
    if (!Fits(json, &value)) {
      Throw(ErrorCode::kInvalidArgument, "{} is {}; expected another type", what, json.dump());
    }
    value = json.get<T>();
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

#endif  // DSAT_PROTO_FIELDS_H_
