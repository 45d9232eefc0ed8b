// Draws plots as inline SVG: marks with error bars, lines and bars in a frame with two axes.
//
// A plot needs neither scripts nor files. Colors are classes of the page's style sheet, and every
// color comes with a shape or a text, so that nothing is said by color alone.
#ifndef DSAT_CLI_REPORT_SVG_PLOT_H_
#define DSAT_CLI_REPORT_SVG_PLOT_H_

#include <limits>
#include <string>
#include <vector>

#include "cli/report/markup.h"

namespace dsat::cli {

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

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

#endif  // DSAT_CLI_REPORT_SVG_PLOT_H_
