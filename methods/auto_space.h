// The configurations of auto's space as numbers that its models can compute with.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The values of one combination of knobs. Those that the models know by name have a field.
struct AutoKnobs {
  double reduce_bucket = 5e8;  // Elements.
  double allgather_bucket = 5e8;
  bool overlap = false;
  bool reduce_scatter = true;
  bool contiguous = true;
  // The index of the value of each other knob, -1 if it is none of them.
  std::vector<int> others;
  // The same of the knobs of a wide space, by key: equal indices are the same key in all places,
  // and -1 also stands for a key that the place lacks. Their predicted effects together.
  std::vector<int> wide;
  KnobEffect effect = {};
  double state_bytes = 0;  // Predicted by formulas of a knob that moves states; not in `effect`.
  // Whether all but the knobs of a wide space are equal.
  bool IsLike(const AutoKnobs& knobs) const {
    return std::tie(reduce_bucket, allgather_bucket, overlap, reduce_scatter, contiguous, others) ==
           std::tie(knobs.reduce_bucket, knobs.allgather_bucket, knobs.overlap,
                    knobs.reduce_scatter, knobs.contiguous, knobs.others);
  }
  bool operator==(const AutoKnobs& knobs) const { return IsLike(knobs) && wide == knobs.wide; }
  // How many knobs have other values. REQUIRES: both are of one place.
  int64_t NumDifferences(const AutoKnobs& knobs) const;
};

struct AutoConfig {
  int64_t place = 0;  // Index into the space's stages.
  int stage = 0;
  size_t settings = 0;  // Equal for places with equal settings, also of an earlier search.
  AutoKnobs knobs;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  bool operator==(const AutoConfig&) const = default;
  // Whether at most knobs of a wide space differ.
  bool IsLike(const AutoConfig& other) const {
    return place == other.place && micro_batch == other.micro_batch &&
           accumulation == other.accumulation && knobs.IsLike(other.knobs);
  }
  double samples() const { return 1.0 * micro_batch * accumulation; }
};

// A configuration of the space by its indices.
struct AutoCandidate {
  int64_t place = 0;
  int64_t knobs = 0;
  int64_t size = 0;
  auto operator<=>(const AutoCandidate&) const = default;
};

// The knobs of a place as submitted.
AutoKnobs SubmittedKnobs(const StageSpace& stage);

class AutoSpace {
 public:
  // The most configurations that are listed. In a larger space, each place keeps the combinations
  // next to the submitted one and others that are drawn at random. What space.where excludes is not
  // listed.
  static constexpr int64_t kMostCandidates = 200'000;

  AutoSpace(const SearchSpace& space, const SearchOptions& options);

  const SearchSpace& space() const { return space_; }
  int64_t num_places() const { return std::ssize(places_); }
  const std::vector<AutoKnobs>& knobs(int64_t place) const { return places_[place].knobs; }
  // Legal micro-batch sizes, ascending. They are dense where one more sample matters: neighbors
  // differ by one step or by less than 7 %.
  const std::vector<int64_t>& sizes(int64_t place) const { return places_[place].sizes; }
  // The number of the listed configurations, and of all of them: in a place and as a whole.
  int64_t num_candidates() const { return num_candidates_; }
  double num_configs(int64_t place) const { return places_[place].num_configs; }
  double num_configs() const { return num_configs_; }

  AutoConfig ConfigOf(const AutoCandidate& candidate) const;
  Assignment AssignmentOf(const AutoCandidate& candidate) const;
  int64_t SizeOf(const AutoCandidate& candidate) const {
    return places_[candidate.place].sizes[candidate.size];
  }
  int64_t AccumulationOf(int64_t micro_batch) const;
  // The configuration that a trial ran at a point; nullopt if its place is not in the space.
  std::optional<AutoConfig> ConfigOf(const Trial& trial, const Point& point) const;
  // The listed configuration with these values.
  std::optional<AutoCandidate> Find(const AutoConfig& config) const;
  // The one whose AssignmentOf is the assignment, but for the accumulation.
  std::optional<AutoCandidate> Find(const Assignment& assignment) const;

 private:
  struct Place {
    std::vector<AutoKnobs> knobs;
    std::vector<std::vector<int>> values;  // The indices of the values of `knobs`.
    std::vector<int64_t> sizes;
    size_t settings = 0;
    double num_configs = 0;
  };

  // Returns the part of all combinations that is allowed, an estimate if they were drawn.
  double ListKnobs(const StageSpace& stage, int64_t most, int64_t seed, Place& place) const;
  AutoKnobs KnobsOf(const StageSpace& stage, const std::vector<int>& values) const;
  void AddOther(const StageSpace& stage, const Knob& knob, int index, AutoKnobs& knobs) const;
  std::vector<int64_t> SizesOf(const StageSpace& stage) const;

  SearchSpace space_;
  std::vector<Place> places_;
  std::vector<std::string> wide_keys_;
  int64_t num_candidates_ = 0;
  double num_configs_ = 0;
};

}  // namespace dsat
