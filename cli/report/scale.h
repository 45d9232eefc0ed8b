// Maps the values of an axis to positions, and chooses its ticks.
#ifndef DSAT_CLI_REPORT_SCALE_H_
#define DSAT_CLI_REPORT_SCALE_H_

#include <string>
#include <vector>

namespace dsat::cli {

// Whether a plot can show a value: it is finite, and differences of two are finite too.
bool IsDrawable(double value);

// A linear or a logarithmic axis (of base 2).
class Scale {
 public:
  // Shows `low` to `high`; a range without extent is widened. Values that are not drawable, and for
  // a logarithmic axis those that are not positive, are replaced by a range around 1.
  Scale(double low, double high, bool is_log = false);

  // Widens the range by this part of it at both ends.
  void Pad(double part);
  // Widens a linear range to the next ticks, about `count` of them.
  void RoundOut(int count);

  double low() const { return low_; }
  double high() const { return high_; }
  // 0 at the low end, 1 at the high end; beyond that for values outside of the range, limited to
  // one extent on either side.
  double At(double value) const;

  struct Tick {
    double value = 0;
    std::string label;
  };
  // About `count` ticks within the range: multiples of 1, 2 or 5 times a power of ten, which is at
  // least `least_step`, or powers of two. At least one.
  std::vector<Tick> Ticks(int count, double least_step = 0) const;

 private:
  double low_;
  double high_;
  bool is_log_;
  double step_ = 0;  // Between ticks, if RoundOut has chosen it.
};

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_SCALE_H_
