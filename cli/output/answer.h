// The answer of a search in lines that a person can act on.
#ifndef DSAT_CLI_OUTPUT_ANSWER_H_
#define DSAT_CLI_OUTPUT_ANSWER_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "searcher/search/search.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {

// A line of the answer: "factor" and "1.44 times the samples/s of the submitted configuration ...".
struct AnswerLine {
  std::string name;
  std::string text;
};

// "1.44 times", or "at least 1.08 times" if the gain is_vague().
std::string TimesText(const Factor& factor);
// " (95 % interval 1.08 to 1.12)", "" if there is none.
std::string IntervalText(const Factor& factor);

// The lines that a person needs to decide: the pick, its factor, how sure it is, its cost, its
// memory. Empty if there is no pick. `verdict` is VerdictOf(search).
std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict);

// The submitted config as a trial resolves it.
Json SubmittedConfig(const ExperimentSpec& spec);

}  // namespace dsat::cli

#endif  // DSAT_CLI_OUTPUT_ANSWER_H_
