// Draws plots.
#include "cli/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dsat::cli {
namespace {

// The smallest of 1, 2 or 5 times a power of ten that is at least `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// With as many decimals as `step` needs.
std::string TickLabel(double value, double step) {
  if (std::abs(value) >= 1e6 || step < 1e-4) return fmt::format("{:.3g}", value);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

// In the SVG's own units, which are about pixels of a wide screen.
constexpr double kWidth = 560;
constexpr double kLeft = 60;
constexpr double kRight = kWidth - 14;
constexpr double kTop = 34;      // Below the label of the y axis.
constexpr double kHeight = 210;  // The height of the frame.
constexpr double kBelow = 26;    // The height of the strip below the frame.
constexpr double kLabeledRow = 56;
constexpr double kLeastRow = 30;  // The least height of a bar's row.
constexpr double kMostRow = 90;
constexpr double kFoot = 48;  // The ticks and the label of the x axis.
constexpr double kCharWidth = 7.5;

std::string Number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

// The path of a mark at a position.
std::string PathOf(Shape shape, double x, double y) {
  const auto from = [&](double dx, double dy, const char* rest) {
    return fmt::format("M{} {}{}", Number(x + dx), Number(y + dy), rest);
  };
  switch (shape) {
    case Shape::kCircle:
    case Shape::kRing:
      return from(-4.2, 0, "a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z");
    case Shape::kSquare:
      return from(-3.8, -3.8, "h7.6v7.6h-7.6z");
    case Shape::kTriangle:
      return from(0, -5, "l4.8 8.4h-9.6z");
    case Shape::kDiamond:
      return from(0, -5.4, "l5.4 5.4-5.4 5.4-5.4-5.4z");
    case Shape::kCross:
      return from(-4, -4, "l8 8m0-8l-8 8");
    case Shape::kDown:
      return from(0, 5, "l4.8-8.4h-9.6z");
    case Shape::kDash:
      return from(-4.5, 0, "h9");
  }
  return "";
}

std::string MarkClass(const Series& series) {
  const bool is_stroke =
      series.shape == Shape::kCross || series.shape == Shape::kDash || series.shape == Shape::kRing;
  return series.color + (is_stroke ? " stroke" : " fill");
}

// The smallest interval that holds all values that it is given.
struct Range {
  double low = kNoValue;
  double high = kNoValue;
  void Add(double value) {
    if (!IsDrawable(value)) return;
    low = std::isnan(low) ? value : std::min(low, value);
    high = std::isnan(high) ? value : std::max(high, value);
  }
};

bool IsShown(const Series& series, const Mark& mark) {
  return IsDrawable(mark.x) && (series.is_below || IsDrawable(mark.y));
}

class Canvas {
 public:
  Canvas(const Plot& plot, Markup& page)
      : plot_(plot), page_(page), x_(MakeX(plot)), y_(MakeY(plot)) {
    has_strip_ = std::ranges::any_of(plot.series, &Series::is_below);
    if (plot.y.is_rows) {
      top_ = plot.at_x.empty() ? 10 : 24;
      row_height_ = kLabeledRow;
      if (plot.row_labels.empty())
        row_height_ = std::clamp(kHeight / static_cast<double>(NumRows()), kLeastRow, kMostRow);
      bottom_ = top_ + row_height_ * static_cast<double>(NumRows());
      left_ = 14;
    } else {
      bottom_ = kTop + kHeight;
    }
  }

  void Draw() {
    const double height = bottom_ + (has_strip_ ? kBelow : 0) + kFoot;
    page_.Open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                       {"viewBox", fmt::format("0 0 {} {}", Number(kWidth), Number(height))},
                       {"role", "img"},
                       {"aria-label", plot_.title},
                       {"aria-describedby", plot_.id + "-desc"}});
    page_.Element("title", plot_.title);
    page_.Element("desc", plot_.caption, {{"id", plot_.id + "-desc"}});
    DrawAxes();
    DrawReferences();
    for (const Bar& bar : plot_.bars)
      DrawBar(bar);
    for (const Series& series : plot_.series) {
      if (series.has_line) DrawLine(series);
    }
    for (const Series& series : plot_.series)
      DrawMarks(series);
    for (const RowLabel& label : plot_.row_labels)
      Label(left_ + 4, RowTop(label.row) + 16, label.text, "row");
    page_.Close();
  }

 private:
  static Scale MakeX(const Plot& plot) {
    Range range;
    for (const Series& series : plot.series) {
      for (const Mark& mark : series.marks) {
        if (!IsShown(series, mark)) continue;
        range.Add(mark.x);
        range.Add(mark.x_low);
        range.Add(mark.x_high);
      }
    }
    for (const Bar& bar : plot.bars) {
      range.Add(bar.from);
      range.Add(bar.to);
    }
    for (const auto& [value, text] : plot.at_x)
      range.Add(value);
    return MakeScale(plot.x, range);
  }

  static Scale MakeY(const Plot& plot) {
    Range range;
    for (const Series& series : plot.series) {
      for (const Mark& mark : series.marks) {
        if (series.is_below || !IsShown(series, mark)) continue;
        range.Add(mark.y);
        if (!IsDrawable(mark.error)) continue;
        range.Add(mark.y + mark.error);
        range.Add(mark.y - mark.error);
      }
    }
    for (const auto& [value, text] : plot.at_y)
      range.Add(value);
    Scale scale = MakeScale(plot.y, range);
    scale.RoundOut(5);
    return scale;
  }

  static Scale MakeScale(const Axis& axis, Range range) {
    if (axis.has_zero) range.Add(0);
    Scale scale(range.low, range.high, axis.is_log);
    if (!axis.has_zero) scale.Pad(0.04);
    return scale;
  }

  int64_t NumRows() const {
    double last = 0;
    for (const Bar& bar : plot_.bars)
      last = std::max(last, bar.row);
    for (const RowLabel& label : plot_.row_labels)
      last = std::max(last, label.row);
    return static_cast<int64_t>(last) + 1;
  }

  double X(double value) const { return left_ + (kRight - left_) * x_.At(value); }
  double RowTop(double row) const { return top_ + row_height_ * row; }
  double Y(double value) const {
    if (plot_.y.is_rows)
      return RowTop(value) + row_height_ * (plot_.row_labels.empty() ? 0.5 : 0.7);
    return bottom_ - (bottom_ - top_) * y_.At(value);
  }
  double YOf(const Series& series, const Mark& mark) const {
    return series.is_below ? bottom_ + kBelow / 2 : Y(mark.y);
  }

  void Line(double x1, double y1, double x2, double y2, const std::string& look) {
    page_.Empty(
        "path",
        {{"class", look},
         {"d", fmt::format("M{} {}L{} {}", Number(x1), Number(y1), Number(x2), Number(y2))}});
  }
  void Label(double x, double y, const std::string& text, const std::string& look) {
    page_.Element("text", text, {{"x", Number(x)}, {"y", Number(y)}, {"class", look}});
  }

  void DrawAxes() {
    const double foot = bottom_ + (has_strip_ ? kBelow : 0);
    if (!plot_.y.is_rows) {
      for (const Scale::Tick& tick : y_.Ticks(5)) {
        Line(left_, Y(tick.value), kRight, Y(tick.value), "grid");
        Label(left_ - 7, Y(tick.value) + 4, tick.label, "tick end");
      }
      Label(2, 15, plot_.y.label, "axis");
    }
    for (const Scale::Tick& tick : x_.Ticks(7, plot_.x.whole_only ? 1 : 0)) {
      Line(X(tick.value), foot, X(tick.value), foot + 4, "frame");
      Label(X(tick.value), foot + 18, tick.label, "tick middle");
    }
    Line(left_, foot, kRight, foot, "frame");
    if (has_strip_) Line(left_, bottom_, kRight, bottom_, "grid");
    Label((left_ + kRight) / 2, foot + 40, plot_.x.label, "axis middle");
  }

  void DrawReferences() {
    for (const auto& [value, text] : plot_.at_y) {
      if (!IsDrawable(value)) continue;
      Line(left_, Y(value), kRight, Y(value), "limit");
      Label(kRight - 2, Y(value) - 5, text, "note end");
    }
    for (const auto& [value, text] : plot_.at_x) {
      if (!IsDrawable(value)) continue;
      Line(X(value), top_, X(value), bottom_, "limit");
      const bool is_right = X(value) > kWidth / 2;
      Label(X(value) + (is_right ? -5 : 5), plot_.y.is_rows ? top_ - 8 : top_ + 13, text,
            is_right ? "note end" : "note");
    }
    if (!plot_.has_diagonal) return;
    const double low = std::max(x_.low(), y_.low()), high = std::min(x_.high(), y_.high());
    if (low < high) Line(X(low), Y(low), X(high), Y(high), "limit");
  }

  void DrawBar(const Bar& bar) {
    if (!IsDrawable(bar.from) || !IsDrawable(bar.to)) return;
    const double from = X(bar.from), width = std::max(1.5, X(bar.to) - from);
    page_.Open("rect", {{"class", "bar " + bar.color},
                        {"x", Number(from)},
                        {"y", Number(RowTop(bar.row) + 5)},
                        {"width", Number(width)},
                        {"height", Number(row_height_ - 10)}});
    page_.Element("title", bar.title).Close();
    if (static_cast<double>(bar.label.size()) * kCharWidth + 4 < width)
      Label(from + width / 2, RowTop(bar.row) + row_height_ / 2 + 4, bar.label, "inside middle");
  }

  void DrawLine(const Series& series) {
    std::string path;
    bool is_down = false;
    for (const Mark& mark : series.marks) {
      if (!IsShown(series, mark)) {
        is_down = false;
        continue;
      }
      const std::string x = Number(X(mark.x)), y = Number(Y(mark.y));
      path += !is_down            ? fmt::format("M{} {}", x, y)
              : series.is_stepped ? fmt::format("H{}V{}", x, y)
                                  : fmt::format("L{} {}", x, y);
      is_down = true;
    }
    if (!path.empty()) page_.Empty("path", {{"class", series.color + " line"}, {"d", path}});
  }

  void DrawMarks(const Series& series) {
    if (!series.has_marks) return;
    page_.Open("g", {{"class", MarkClass(series)}});
    for (const Mark& mark : series.marks) {
      if (!IsShown(series, mark)) continue;
      const double x = X(mark.x), y = YOf(series, mark);
      if (IsDrawable(mark.error) && mark.error > 0 && !series.is_below)
        Line(x, Y(mark.y - mark.error), x, Y(mark.y + mark.error), "error");
      if (IsDrawable(mark.x_low) && IsDrawable(mark.x_high))
        Line(X(mark.x_low), y, X(mark.x_high), y, "interval");
      if (!mark.halo.empty())
        page_.Empty("circle",
                    {{"class", mark.halo}, {"cx", Number(x)}, {"cy", Number(y)}, {"r", "9"}});
      const Markup::Attributes path = {{"d", PathOf(series.shape, x, y)}};
      if (mark.title.empty()) {
        page_.Empty("path", path);
      } else {
        page_.Open("path", path).Element("title", mark.title).Close();
      }
    }
    page_.Close();
  }

  const Plot& plot_;
  Markup& page_;
  Scale x_;
  Scale y_;
  bool has_strip_ = false;
  double left_ = kLeft;
  double top_ = kTop;
  double bottom_ = 0;
  double row_height_ = 0;
};

void DrawLegend(const Plot& plot, Markup& page) {
  if (std::ranges::none_of(plot.series, [](const Series& s) { return !s.name.empty(); })) return;
  page.Open("ul", {{"class", "legend"}});
  for (const Series& series : plot.series) {
    if (series.name.empty()) continue;
    page.Open("li").Open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                                 {"viewBox", "0 0 20 14"},
                                 {"aria-hidden", "true"}});
    if (series.has_line) page.Empty("path", {{"class", series.color + " line"}, {"d", "M1 7h18"}});
    if (series.has_marks) {
      page.Open("g", {{"class", MarkClass(series)}})
          .Empty("path", {{"d", PathOf(series.shape, 10, 7)}})
          .Close();
    }
    page.Close().Text(series.name).Close();
  }
  page.Close();
}

}  // namespace

bool IsDrawable(double value) {
  return std::isfinite(value) && std::abs(value) < 1e100;
}

Scale::Scale(double low, double high, bool is_log) : low_(low), high_(high), is_log_(is_log) {
  if (!IsDrawable(low_) || !IsDrawable(high_) || low_ > high_ || (is_log_ && low_ <= 0))
    low_ = high_ = 1;
  const double least = 1e-9 * std::max(std::abs(low_), std::abs(high_));
  if (high_ - low_ > least) return;
  const double half = low_ == 0 ? 1 : std::abs(low_) / (is_log_ ? 3 : 10);
  low_ -= half;
  high_ += half;
}

void Scale::Pad(double part) {
  if (is_log_) {
    const double factor = std::pow(high_ / low_, part);
    low_ /= factor;
    high_ *= factor;
  } else {
    const double extent = high_ - low_;
    // Numbers that are not negative get no negative ticks.
    low_ = low_ < 0 ? low_ - part * extent : std::max(low_ - part * extent, 0.0);
    high_ += part * extent;
  }
}

void Scale::RoundOut(int count) {
  if (is_log_) return;
  step_ = RoundStep((high_ - low_) / count);
  low_ = std::floor(low_ / step_ + 1e-9) * step_;
  high_ = std::ceil(high_ / step_ - 1e-9) * step_;
}

double Scale::At(double value) const {
  double at = (value - low_) / (high_ - low_);
  if (is_log_) at = value <= 0 ? -1 : std::log(value / low_) / std::log(high_ / low_);
  return std::clamp(at, -1.0, 2.0);
}

std::vector<Scale::Tick> Scale::Ticks(int count, double least_step) const {
  std::vector<Tick> ticks;
  if (is_log_) {
    const int first = static_cast<int>(std::ceil(std::log2(low_) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log2(high_) + 1e-9));
    const int step = std::max(1, (last - first + count - 1) / count);
    for (int exponent = first; exponent <= last; exponent += step) {
      const double value = std::exp2(exponent);
      ticks.push_back({value, fmt::format("{:.4g}", value)});
    }
  } else {
    const double step = step_ > 0 ? step_ : RoundStep(std::max((high_ - low_) / count, least_step));
    const double first = std::ceil(low_ / step - 1e-9);
    for (int i = 0; i <= 2 * count; ++i) {
      const double value = (first + i) * step;
      if (value > high_ + 1e-9 * step) break;
      ticks.push_back({value, TickLabel(value, step)});
    }
  }
  if (ticks.empty()) ticks.push_back({low_, TickLabel(low_, high_ - low_)});
  return ticks;
}

void DrawFigure(const Plot& plot, Markup& page) {
  const bool has_marks = std::ranges::any_of(plot.series, [](const Series& series) {
    return std::ranges::any_of(series.marks,
                               [&](const Mark& mark) { return IsShown(series, mark); });
  });
  page.Open("figure", {{"id", plot.id}}).Open("figcaption").Element("h3", plot.title);
  page.Element("p", plot.caption).Close();
  if (has_marks || !plot.bars.empty()) {
    DrawLegend(plot, page);
    Canvas(plot, page).Draw();
  } else {
    page.Element("p", "There is nothing to draw.", {{"class", "nothing"}});
  }
  page.Close();
}

}  // namespace dsat::cli
