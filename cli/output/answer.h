// The answer of a search in lines that a person can act on.
#ifndef DSAT_CLI_OUTPUT_ANSWER_H_
#define DSAT_CLI_OUTPUT_ANSWER_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "searcher/search/search.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {

// " (1.08 to 1.12)", the 95 % interval; "" if there is none.
std::string IntervalText(const Factor& factor);

// The answer in one line: "1.39 times as fast as submitted (1.33 to 1.46), proven in 3 rounds".
// `verdict` is VerdictOf(search), here and below.
std::string Headline(const Search& search, const Verdict& verdict);

// The facts that a person decides by, the most important first: the headline, what changes, how it
// trains, how sure it is, its cost, and what else is to be known. Empty if there is no pick. `id`
// is the number of the experiment.
std::vector<std::string> AnswerSentences(const Search& search, const Verdict& verdict,
                                         ExperimentId id);
// The same in at most kMostSummaryLines lines of 80 columns; a longer word has a line of its own.
// `next` are commands for the end.
inline constexpr size_t kMostSummaryLines = 9;
std::string ShortAnswer(const Search& search, const Verdict& verdict, ExperimentId id,
                        const std::vector<std::string>& next = {});

// A detail of the answer: "soak" and "trial 37 ran 50 steps and saved checkpoints, ...".
struct AnswerLine {
  std::string name;
  std::string text;
};
// The details that the short answer leaves out or shortens. Empty if there is no pick.
std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict);

// The submitted config as a trial resolves it.
Json SubmittedConfig(const ExperimentSpec& spec);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_ANSWER_H_
