// Draws plots as inline SVG: marks with error bars, lines and bars in a frame with two axes, whose
// scales map values to positions.
//
// A plot needs neither scripts nor files. Colors are classes of the page's style sheet, and every
// color comes with a shape or a text, so that nothing is said by color alone.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/markup.h"

namespace dsat::cli {

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

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

// The shape of a mark. The first four are those of ZeRO stages 0 to 3.
enum class Shape { kCircle, kSquare, kTriangle, kDiamond, kCross, kDown, kDash, kRing };

// A measurement. What is not drawable (IsDrawable) is left out.
struct Mark {
  double x = 0;
  double y = 0;
  double error = kNoValue;  // Half the height of its error bar, in units of y.
  double x_low = kNoValue;  // The ends of its horizontal bar.
  double x_high = kNoValue;
  std::string halo = {};   // The class of a circle around it: "picked", "base" or "".
  std::string title = {};  // Shown by browsers when the pointer is on it.
};

// Marks of one look, which the legend names.
struct Series {
  std::string name;   // "" = not in the legend.
  std::string color;  // A class of the style sheet: "s0" to "s3", "best", "soft", ...
  Shape shape = Shape::kCircle;
  std::vector<Mark> marks = {};
  bool has_marks = true;
  bool has_line = false;  // Connects them in order; a mark that is not drawable interrupts it.
  bool is_stepped = false;
  // The marks are of no value: they are in a strip below the plot, and their y does not count.
  bool is_below = false;
};

// A rectangle from x `from` to `to` in a row.
struct Bar {
  double from = 0;
  double to = 0;
  double row = 0;
  std::string color;
  std::string label;  // Written into it where it has room.
  std::string title;
};

// A text above a row, at the left.
struct RowLabel {
  double row = 0;
  std::string text;
};

struct Axis {
  std::string label = {};
  bool is_log = false;
  bool has_zero = false;    // The range includes 0.
  bool whole_only = false;  // Ticks are whole numbers.
  bool is_rows = false;     // The y axis counts rows 0, 1, 2, ... from above and has no ticks.
};

struct Plot {
  std::string id;  // Unique in the document.
  std::string title;
  std::string caption;  // Says what the plot shows, in one or two sentences.
  Axis x;
  Axis y;
  std::vector<Series> series = {};
  std::vector<Bar> bars = {};
  std::vector<RowLabel> row_labels = {};
  // Lines across the plot, each with a text: at a y, at an x, and of x = y.
  std::vector<std::pair<double, std::string>> at_y = {};
  std::vector<std::pair<double, std::string>> at_x = {};
  bool has_diagonal = false;
};

// A <figure> with its caption, its legend and the plot. A plot without anything drawable has a text
// instead.
void DrawFigure(const Plot& plot, Markup& page);

}  // namespace dsat::cli
