// Tests what a report's page is drawn with: escaping, axes and plots.
#include "cli/report/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "cli/report/markup.h"

namespace dsat::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MarkupTest, NoTextCanEndWhereItStands) {
  EXPECT_EQ(Escaped("</script><img src=\"x\" onerror='a()'> & ]]>"),
            "&lt;/script&gt;&lt;img src=&quot;x&quot; onerror=&#39;a()&#39;&gt; &amp; ]]&gt;");
  EXPECT_EQ(Escaped("a\x1b[31m\tb\nc\r\x7f"), "a\\x1b[31m\tb\nc\\x0d\\x7f");
  EXPECT_EQ(Escaped(std::string_view("\0", 1)), "\\x00");
  // Invalid UTF-8, a surrogate and U+FFFF, none of which XML has.
  EXPECT_EQ(Escaped("caf\xC3\xA9 \xFF."), "caf\xC3\xA9 \xEF\xBF\xBD.");
  EXPECT_EQ(Escaped("\xED\xA0\x80").find('\xED'), std::string::npos);
  EXPECT_EQ(Escaped("\xEF\xBF\xBFx\xEF\xBF\xBE"), "\xEF\xBF\xBDx\xEF\xBF\xBD");
}

TEST(MarkupTest, ElementsNestAndAttributesAreQuoted) {
  Markup page;
  page.Open("p", {{"class", "a\"b"}}).Text("1 < 2").Element("b", "x").Close();
  page.Empty("hr", {{"id", "h"}});
  EXPECT_EQ(page.text(), "<p class=\"a&quot;b\">1 &lt; 2<b>x</b></p><hr id=\"h\"/>");
}

std::vector<std::string> LabelsOf(const Scale& scale, int count) {
  std::vector<std::string> labels;
  for (const Scale::Tick& tick : scale.Ticks(count))
    labels.push_back(tick.label);
  return labels;
}

TEST(ScaleTest, TicksAreRoundNumbersWithinTheRange) {
  EXPECT_THAT(LabelsOf(Scale(0, 100), 5), ElementsAre("0", "20", "40", "60", "80", "100"));
  EXPECT_THAT(LabelsOf(Scale(0.13, 0.34), 5), ElementsAre("0.15", "0.20", "0.25", "0.30"));
  EXPECT_THAT(LabelsOf(Scale(-3, 8), 5), ElementsAre("0", "5"));
  EXPECT_THAT(LabelsOf(Scale(1, 32, true), 7), ElementsAre("1", "2", "4", "8", "16", "32"));
  EXPECT_THAT(LabelsOf(Scale(1, 4096, true), 5), ElementsAre("1", "8", "64", "512", "4096"));
  Scale rounded(3, 96);
  rounded.RoundOut(5);
  EXPECT_THAT(LabelsOf(rounded, 5), ElementsAre("0", "20", "40", "60", "80", "100"));
}

TEST(ScaleTest, ValuesMapToTheirPartOfTheRange) {
  EXPECT_DOUBLE_EQ(Scale(10, 20).At(15), 0.5);
  EXPECT_DOUBLE_EQ(Scale(1, 16, true).At(4), 0.5);
  EXPECT_DOUBLE_EQ(Scale(0, 1).At(1e9), 2);  // Outside, but not far.
  EXPECT_DOUBLE_EQ(Scale(1, 2, true).At(0), -1);
}

TEST(ScaleTest, RoomBesidesNumbersThatAreNotNegativeIsNotNegative) {
  Scale scale(1, 500);
  scale.Pad(0.04);
  scale.RoundOut(5);
  EXPECT_EQ(scale.low(), 0);
  EXPECT_GT(scale.high(), 500);
}

TEST(ScaleTest, EveryRangeHasAnExtentAndATick) {
  for (const bool is_log : {false, true}) {
    for (const auto& [low, high] : {std::pair{5.0, 5.0},
                                    {0.0, 0.0},
                                    {kNoValue, kNoValue},
                                    {-kInfinity, kInfinity},
                                    {-1e308, 1e308},
                                    {1e99, 1e99},
                                    {1e-300, 1e-300},
                                    {3.0, 1.0},
                                    {-2.0, -2.0}}) {
      SCOPED_TRACE(testing::Message() << low << " " << high << " " << is_log);
      Scale scale(low, high, is_log);
      scale.Pad(0.05);
      scale.RoundOut(5);
      EXPECT_LT(scale.low(), scale.high());
      EXPECT_TRUE(std::isfinite(scale.At(7)));
      EXPECT_GE(scale.Ticks(5).size(), 1U);
      EXPECT_LE(scale.Ticks(5).size(), 12U);
    }
  }
}

Plot OnePlot(std::vector<Mark> marks) {
  Plot plot{.id = "p",
            .title = "A title",
            .caption = "A caption.",
            .x = {.label = "x"},
            .y = {.label = "y"}};
  plot.series = {{.name = "stage 2", .color = "s2", .marks = std::move(marks), .has_line = true}};
  return plot;
}

std::string Drawn(const Plot& plot) {
  Markup page;
  DrawFigure(plot, page);
  return page.text();
}

// The marks, without those of the legend, which stand before the plot.
int64_t NumMarks(const std::string& drawn) {
  const std::string plot = drawn.substr(drawn.find("role=\"img\""));
  const std::regex mark("<path d=");
  return std::distance(std::sregex_iterator(plot.begin(), plot.end(), mark), {});
}

TEST(SvgPlotTest, APlotNamesItselfAndItsMarks) {
  Plot plot = OnePlot({{.x = 1, .y = 2, .error = 0.5, .halo = "picked", .title = "trial 1"},
                       {.x = 2, .y = 3, .x_low = 1, .x_high = 3}});
  plot.at_y = {{4, "limit"}};
  const std::string drawn = Drawn(plot);
  EXPECT_THAT(drawn, AllOf(HasSubstr("<title>A title</title>"),
                           HasSubstr("<desc id=\"p-desc\">A caption.</desc>"),
                           HasSubstr("aria-label=\"A title\" aria-describedby=\"p-desc\""),
                           HasSubstr("<title>trial 1</title>"), HasSubstr(">limit</text>"),
                           HasSubstr("class=\"picked\""), HasSubstr("class=\"error\""),
                           HasSubstr("class=\"interval\""), HasSubstr(">stage 2</li>")));
  EXPECT_EQ(NumMarks(drawn), 2);
}

TEST(SvgPlotTest, NothingIsDrawnOfNothing) {
  EXPECT_THAT(Drawn(OnePlot({})),
              AllOf(HasSubstr("There is nothing to draw."), Not(HasSubstr("<svg"))));
}

TEST(SvgPlotTest, OnePointIsInTheMiddle) {
  const std::string drawn = Drawn(OnePlot({{.x = 5, .y = 5}}));
  EXPECT_EQ(NumMarks(drawn), 1);
  EXPECT_THAT(drawn, HasSubstr(">5.0</text>"));
}

TEST(SvgPlotTest, HugeAndMissingValuesLeaveTheOthersWhereTheyAre) {
  const std::vector<Mark> sound = {{.x = 1, .y = 1}, {.x = 2, .y = 2}};
  std::vector<Mark> marks = sound;
  for (const double value : {kNoValue, kInfinity, -kInfinity, 1e200})
    marks.insert(marks.end(), {{.x = value, .y = 1}, {.x = 1, .y = value}});
  marks[0].error = kInfinity;
  const std::string drawn = Drawn(OnePlot(marks));
  EXPECT_EQ(NumMarks(drawn), 2);
  EXPECT_THAT(drawn, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  EXPECT_EQ(drawn.substr(0, drawn.find("class=\"s2 line\" d=")),
            Drawn(OnePlot(sound)).substr(0, drawn.find("class=\"s2 line\" d=")));
}

TEST(SvgPlotTest, AMissingValueInterruptsALine) {
  const std::string drawn =
      Drawn(OnePlot({{.x = 1, .y = 1}, {.x = 2, .y = kNoValue}, {.x = 3, .y = 1}}));
  EXPECT_TRUE(std::regex_search(drawn, std::regex("class=\"s2 line\" d=\"M[^ML]*M[^ML]*\"")))
      << drawn;
}

TEST(SvgPlotTest, BarsFillRowsAndMarksWithoutAValueStandBelow) {
  Plot rows{.id = "r", .title = "t", .caption = "c", .x = {.label = "s"}, .y = {.is_rows = true}};
  rows.bars = {{.from = 0, .to = 100, .row = 0, .color = "s1 fill", .label = "1", .title = "one"},
               {.from = 0, .to = 1e-9, .row = 1, .color = "s1 fill", .label = "2", .title = "two"}};
  const std::string drawn = Drawn(rows);
  EXPECT_THAT(drawn, AllOf(HasSubstr(">1</text>"), Not(HasSubstr(">2</text>"))));  // No room.
  Plot below = OnePlot({{.x = 1, .y = 1}});
  below.series.push_back({.name = "failed",
                          .color = "end-state",
                          .shape = Shape::kDown,
                          .marks = {{.x = 1, .y = kNoValue, .title = "trial 9"}},
                          .is_below = true});
  EXPECT_THAT(Drawn(below), HasSubstr("<title>trial 9</title>"));
}

}  // namespace
}  // namespace dsat::cli
