// The keys of an experiment file.
#include <fmt/ranges.h>

#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "engine/config/keys.h"
#include "engine/config/strategies.h"
#include "engine/config/validate.h"
#include "searcher/command/command_words.h"
#include "searcher/command/trainer_command.h"
#include "searcher/input/document.h"
#include "searcher/input/experiment_file.h"
#include "searcher/input/user_space.h"

namespace dsat {
namespace {

constexpr char kHparams[] = "/hyperparameters";
constexpr char kConfigKey[] = "deepspeed_config";
constexpr char kOverwriteKey[] = "overwrite_deepspeed_args";
constexpr char kConfigPointer[] = "/hyperparameters/deepspeed_config";
constexpr char kOverwritePointer[] = "/hyperparameters/overwrite_deepspeed_args";

// Builds the spec, one key at a time.
class SpecReader {
 public:
  SpecReader(const ExperimentDocument& document, std::string model_dir,
             std::vector<std::string>* warnings)
      : document_(document), warnings_(warnings) {
    spec_.model_dir = std::move(model_dir);
    const Json* entrypoint = Find("/entrypoint");
    is_builtin_ = entrypoint != nullptr && *entrypoint == Json("builtin");
  }

  ExperimentSpec Read() {
    for (const char* section : {"", "/resources", "/searcher", "/environment", kHparams})
      CheckSection(section);
    if (!without_meaning_.empty()) {
      warnings_->push_back(fmt::format("{}: keys without effect are ignored: {}", document_.path,
                                       fmt::join(without_meaning_, ", ")));
    }
    if (const Json* name = Find("/name")) spec_.name = *name;
    ReadResources();
    ReadSearcher();
    if (const Json* restarts = Find("/max_restarts")) spec_.max_restarts = *WholeNumber(*restarts);
    ReadEnvironment();
    ReadEntrypoint();
    ReadHyperparameters();
    const std::string source = spec_.ds_config_path.empty() ? document_.path : spec_.ds_config_path;
    const Json lists = TakeLists(source, spec_.ds_config);
    CheckTarget();
    ReadSpace(source, lists);
    if (const Json* where = Find("/where"))
      spec_.where = ReadWhere(document_, *where, spec_, warnings_);
    return std::move(spec_);
  }

 private:
  // The value at a pointer; nullptr if it is not given or null.
  const Json* Find(const std::string& pointer) const {
    DSAT_CHECK(FindExperimentKey(pointer) != nullptr, "{} is not in the schema", pointer);
    const Json* value = FindAtPointer(document_.root, pointer);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  void Warn(const std::string& pointer, const std::string& message) {
    warnings_->push_back(fmt::format("{} {}", document_.Place(pointer), message));
  }

  [[noreturn]] void Expect(const std::string& pointer, const Json& value,
                           const std::string& expected) const {
    document_.Fail(pointer, fmt::format("is {}; expected {}", value.dump(), expected));
  }

  int64_t Integer(const std::string& pointer, const Json& value, int64_t min) const {
    std::optional<int64_t> number = WholeNumber(value);
    if (!number || *number < min) Expect(pointer, value, fmt::format("an integer >= {}", min));
    return *number;
  }

  // Checks the keys of a section and their values by the schema.
  void CheckSection(const std::string& section) {
    const Json* object = Find(section);
    if (object == nullptr) return;
    const Json& schema = *FindExperimentKey(section);
    const bool is_open = schema.value("additionalProperties", true) &&
                         !(is_builtin_ && object->contains(kConfigKey));
    for (const auto& [name, value] : object->items()) {
      const std::string pointer = fmt::format("{}/{}", section, name);
      const auto key = schema["properties"].find(name);
      if (key == schema["properties"].end()) {
        if (!is_open) RefuseKey(pointer, name, schema["properties"]);
      } else if (key->contains("deprecated") || (is_builtin_ && key->contains("reader"))) {
        without_meaning_.push_back(pointer);
      } else if (!value.is_null() && !Fits(*key, value)) {
        const std::string expected = key->at("errorMessage");
        document_.Fail(pointer, fmt::format("is {}; {}", value.dump(), expected));
      }
    }
  }

  [[noreturn]] void RefuseKey(const std::string& pointer, const std::string& name,
                              const Json& keys) const {
    std::vector<std::string> known, read;
    for (const auto& [key, schema] : keys.items()) {
      known.push_back(key);
      if (!schema.contains("deprecated") && !schema.contains("reader")) read.push_back(key);
    }
    const std::string nearest = NearestWord(name, known);
    document_.Fail(pointer,
                   nearest.empty()
                       ? fmt::format("is unknown; expected one of {}", fmt::join(read, " "))
                       : fmt::format("is unknown; did you mean \"{}\"?", nearest));
  }

  void ReadResources() {
    if (const Json* slots = Find("/resources/slots_per_trial"))
      spec_.slots_per_trial = *WholeNumber(*slots);
    if (const Json* device = Find("/resources/device")) spec_.device = *device;
    spec_.device_memory_bytes = ReadBytes("/resources/device_memory");
    spec_.host_memory_bytes = ReadBytes("/resources/host_memory");
  }

  // A size, as a number of bytes or a text with a unit; 0 if it is not given.
  int64_t ReadBytes(const std::string& pointer) {
    const Json* memory = Find(pointer);
    if (memory == nullptr) return 0;
    if (!memory->is_string()) return *WholeNumber(*memory);
    const std::string& text = memory->get_ref<const std::string&>();
    const int64_t bytes = ParseBytes(text, document_.Place(pointer));
    return bytes == 0 ? Integer(pointer, *memory, 1) : bytes;
  }

  void ReadSearcher() {
    const std::string pointer = "/searcher/max_length";
    const Json* length = Find(pointer);
    if (length == nullptr) return;
    const auto [unit, count] = ReadLength(pointer, *length, 1);
    if (unit == "batches") {
      spec_.max_length_steps = count;
    } else if (is_builtin_) {
      Warn(pointer + "/" + unit, fmt::format("is ignored: a full run counts batches; it takes {}",
                                             spec_.max_length_steps));
    }
  }

  // A number of batches, or one with its unit.
  std::pair<std::string, int64_t> ReadLength(const std::string& pointer, const Json& length,
                                             int64_t min) const {
    if (!length.is_object()) return {"batches", Integer(pointer, length, min)};
    if (length.size() != 1) Expect(pointer, length, "one unit, such as {\"batches\": 100}");
    const std::string& unit = length.begin().key();
    if (unit != "batches" && unit != "epochs" && unit != "records")
      Expect(pointer, length, "one of the units batches, epochs and records");
    return {unit, Integer(pointer + "/" + unit, length.begin().value(), min)};
  }

  // Keeps what the ranks of a command read of the file (python/dsat/_determined).
  void KeepForRanks(Json hparams) {
    if (is_builtin_) return;
    for (const char* pointer : {"/min_validation_period", "/min_checkpoint_period"})
      if (const Json* period = Find(pointer)) ReadLength(pointer, *period, 0);
    spec_.file = document_.root;
    spec_.file["hyperparameters"] = std::move(hparams);
    for (const char* key : {"search_space", "where"})
      spec_.file.erase(key);
    if (Find("/searcher/max_length") == nullptr)
      SetAtPointer(spec_.file, "/searcher/max_length", spec_.max_length_steps);
  }

  // A list of "NAME=VALUE", a map from name to value, or one of these for each kind of device.
  void ReadEnvironment() {
    const std::string pointer = "/environment/environment_variables";
    const Json* given = Find(pointer);
    if (given == nullptr) return;
    ReadVariables(pointer, *given);
    const bool has_cuda = std::filesystem::exists("/dev/nvidiactl");
    const bool has_rocm = std::filesystem::exists("/dev/kfd");
    for (const auto& [kind, is_here] :
         {std::pair("cpu", !has_cuda && !has_rocm), std::pair("gpu", has_cuda || has_rocm),
          std::pair("rocm", has_rocm), std::pair("cuda", has_cuda)}) {
      const auto variables = given->find(kind);
      if (is_here && variables != given->end() && variables->is_structured())
        ReadVariables(fmt::format("{}/{}", pointer, kind), *variables);
    }
  }

  void ReadVariables(const std::string& pointer, const Json& variables) {
    for (const auto& [key, value] : variables.items()) {
      const std::string at = fmt::format("{}/{}", pointer, key);
      const bool is_kind = key == "cpu" || key == "cuda" || key == "gpu" || key == "rocm";
      if (is_kind && value.is_structured()) continue;
      if (value.is_structured() || value.is_null()) Expect(at, value, "a text");
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (variables.is_object()) {
        SetVariable(at, key, text);
        continue;
      }
      const size_t equals = text.find('=');
      if (equals == text.npos) Expect(at, value, "NAME=VALUE");
      SetVariable(at, text.substr(0, equals), text.substr(equals + 1));
    }
  }

  void SetVariable(const std::string& pointer, const std::string& name, const std::string& value) {
    if (!IsVariableName(name)) Expect(pointer, name, "the name of a variable");
    if (SetsItself(name))
      document_.Fail(pointer, fmt::format("sets {}, which dsat sets itself", name));
    spec_.environment[name] = value;
  }

  void ReadEntrypoint() {
    const std::string pointer = "/entrypoint";
    const Json* entrypoint = Find(pointer);
    if (entrypoint == nullptr) {
      document_.Fail(pointer, "is missing; expected \"builtin\" or a command");
    }
    if (entrypoint->is_string()) {
      try {
        spec_.entrypoint = SplitCommand(entrypoint->get<std::string>());
      } catch (const Error& error) {
        Expect(pointer, *entrypoint, fmt::format("a command; {}", error.what()));
      }
    } else if (entrypoint->is_array()) {
      for (const Json& word : *entrypoint) {
        if (word.is_structured() || word.is_null()) Expect(pointer, word, "texts only");
        spec_.entrypoint.push_back(word.is_string() ? word.get<std::string>() : word.dump());
      }
    }
    if (spec_.entrypoint.empty() || spec_.entrypoint[0].empty()) {
      Expect(pointer, *entrypoint, "\"builtin\" or a command");
    }
  }

  // {type: const, val: x} is x; ranges are not supported.
  Json Constants(const std::string& pointer, const Json& value) const {
    if (!value.is_object()) return value;
    const Json type = value.value("type", Json());
    if (type == Json("const")) {
      if (value.contains("val") && value.size() == 2) return value["val"];
      Expect(pointer, value, "{type: const, val: VALUE}");
    }
    bool has_range = value.contains("minval") || value.contains("maxval") || value.contains("vals");
    if (type.is_string() && has_range) {
      Expect(pointer, value,
             "a constant, because dsat searches ds_config keys and not hyperparameter ranges");
    }
    Json result = Json::object();
    for (const auto& [key, item] : value.items()) {
      result[key] = Constants(pointer + "/" + key, item);
    }
    return result;
  }

  void ReadHyperparameters() {
    const Json* given = Find(kHparams);
    Json hparams = given == nullptr ? Json::object() : Constants(kHparams, *given);
    KeepForRanks(hparams);
    Json overwrite = hparams.value(kOverwriteKey, Json());
    hparams.erase(kOverwriteKey);
    if (hparams.contains(kConfigKey)) {
      ReadConfigFile(hparams[kConfigKey]);
      hparams.erase(kConfigKey);
      RefuseInline(hparams);
    } else {
      TakeInline(hparams);
    }
    Overwrite(overwrite);
    spec_.hyperparameters = hparams;
  }

  void ReadConfigFile(const Json& name) {
    if (name.is_object() && !name.empty()) {
      spec_.ds_config = name;
      return;
    }
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      Expect(kConfigPointer, name, "the path of a ds_config file, or a strategy");
    }
    if (engine::FindStrategy(name.get_ref<const std::string&>()) != nullptr) {
      spec_.ds_config_path = name;
      spec_.ds_config = engine::ReadDsConfig(name);
      return;
    }
    std::filesystem::path path(spec_.model_dir);
    path /= name.get<std::string>();  // An absolute path replaces the folder.
    spec_.ds_config_path = path.lexically_normal().string();
    try {
      spec_.ds_config = engine::ReadDsConfig(spec_.ds_config_path);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) throw;  // Names the file and its line.
      throw Error(error.code(),
                  fmt::format("{}: {}", document_.Place(kConfigPointer), error.what()));
    }
  }

  // True for a key of a ds_config with a value of the right type. `optimizer: adam` is a
  // hyperparameter of the user's own.
  static bool IsDsConfigEntry(const std::string& key, const Json& value) {
    const engine::Key* known = engine::Keys().Find("/" + key);
    if (known == nullptr || *known->pointer == '\0' || key.find('/') != key.npos) return false;
    return (value.is_string() && value == Json("auto")) ||
           engine::Keys().Misfit(*known, value).empty();
  }

  void RefuseInline(const Json& hparams) const {
    for (const char* key :
         {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
          "zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "gradient_clipping"}) {
      if (!hparams.contains(key) || !IsDsConfigEntry(key, hparams[key])) continue;
      document_.Fail(fmt::format("{}/{}", kHparams, key),
                     fmt::format("contradicts {}; expected it in that file or in {}",
                                 kConfigPointer, kOverwritePointer));
    }
  }

  void TakeInline(Json& hparams) {
    for (auto it = hparams.begin(); it != hparams.end();) {
      const bool take = IsBuiltin(spec_) ? it.key() != "model" && it.key() != "data"
                                         : IsDsConfigEntry(it.key(), *it);
      if (take) spec_.ds_config[it.key()] = *it;
      it = take ? hparams.erase(it) : std::next(it);
    }
  }

  void Overwrite(const Json& overwrite) {
    if (overwrite.is_null()) return;
    if (!overwrite.is_object()) Expect(kOverwritePointer, overwrite, "an object");
    if (Find(kConfigPointer) == nullptr && !overwrite.empty()) {
      document_.Fail(kOverwritePointer,
                     fmt::format("overwrites nothing; expected {} beside it", kConfigPointer));
    }
    MergeJson(spec_.ds_config, overwrite);
    overwritten_ = overwrite;
  }

  // The user's own values: the section search_space, and the lists of the ds_config.
  void ReadSpace(const std::string& source, const Json& lists) {
    const Json* tuner = FindAtPointer(spec_.ds_config, "/autotuning/enabled");
    if (tuner != nullptr && *tuner == true) {
      warnings_->push_back(
          fmt::format("{}: /autotuning is for DeepSpeed's own tuner, and its limits do not apply; "
                      "search_space of the experiment file and the options of the command set them",
                      source));
    }
    if (const Json* space = Find("/search_space"))
      spec_.search_space = ReadUserSpace(document_, *space, spec_, warnings_);
    AddSubmittedValues(spec_);
    if (lists.empty()) return;
    const Json more =
        ReadUserSpace({.path = source, .root = {}, .lines = {}}, lists, spec_, warnings_);
    for (const auto& [pointer, values] : more.items()) {
      if (spec_.search_space.contains(pointer))
        document_.Fail("/search_space",
                       fmt::format("has {}, of which {} has a list too", pointer, source));
      spec_.search_space[pointer] = values;
    }
    std::vector<std::string> pointers;
    for (const auto& [pointer, values] : lists.items())
      pointers.push_back(pointer);
    warnings_->push_back(
        fmt::format("{}: lists of values are searched, and the first of each is submitted: {}",
                    source, fmt::join(pointers, ", ")));
  }

  // Checks what the launch target needs, and the merged config.
  void CheckTarget() {
    if (spec_.ds_config_path.empty() && spec_.ds_config.empty())
      document_.Fail(kConfigPointer,
                     "is missing; expected a file or DeepSpeed's keys in /hyperparameters");
    const bool builtin = spec_.entrypoint[0] == "builtin";
    if (builtin) CheckBuiltin();
    if (!builtin && Find("/resources/device") != nullptr)
      document_.Fail("/resources/device",
                     "applies to the builtin entrypoint only; a command chooses its own");
    const std::string source =
        spec_.ds_config_path.empty() ? document_.Place(kHparams) : spec_.ds_config_path;
    spec_.config_path = document_.path;
    try {
      const std::vector<std::string> found =
          builtin
              ? engine::ValidateDsConfig(spec_.ds_config, source, spec_.slots_per_trial).warnings
              : CheckCommandConfig(source, &spec_);
      warnings_->insert(warnings_->end(), found.begin(), found.end());
    } catch (const Error& error) {
      NameOverwritten(source, error);
      throw;
    }
  }

  // Throws the error "SOURCE: POINTER ..." with the place of the key among those that overwrite the
  // config, if it is one of these.
  void NameOverwritten(const std::string& source, const Error& error) const {
    std::string_view what = error.what();
    if (!what.starts_with(source + ": /")) return;
    what.remove_prefix(source.size() + 2);
    const std::string pointer(what.substr(0, what.find_first_of(" :")));
    if (FindAtPointer(overwritten_, pointer) == nullptr) return;
    const std::string at = kOverwritePointer + pointer;
    Throw(error.code(), "{}{}", document_.Place(at), what.substr(pointer.size()));
  }

  void CheckBuiltin() const {
    if (spec_.entrypoint.size() > 1) {
      Expect("/entrypoint", spec_.entrypoint, "\"builtin\" alone, because it takes no arguments");
    }
    for (const char* key : {"model", "data"}) {
      const std::string pointer = fmt::format("{}/{}", kHparams, key);
      auto found = spec_.hyperparameters.find(key);
      if (found == spec_.hyperparameters.end()) {
        document_.Fail(pointer, "is missing; the builtin entrypoint needs it");
      }
      if (!found->is_object()) Expect(pointer, *found, "an object");
    }
  }

  const ExperimentDocument& document_;
  std::vector<std::string>* warnings_;
  bool is_builtin_ = false;
  std::vector<std::string> without_meaning_;  // Pointers.
  ExperimentSpec spec_;
  Json overwritten_;  // The part of the ds_config that the experiment file overwrites.
};

}  // namespace

ExperimentSpec SpecFromDocument(const ExperimentDocument& document, const std::string& model_dir,
                                std::vector<std::string>* warnings) {
  return SpecReader(document, model_dir, warnings).Read();
}

}  // namespace dsat
