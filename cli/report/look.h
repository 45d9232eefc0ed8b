// The style sheet and the script of the page.
#ifndef DSAT_CLI_REPORT_LOOK_H_
#define DSAT_CLI_REPORT_LOOK_H_

namespace dsat::cli {

// The style sheet. It has no "<" and "&", which an XML parser would read as markup.
extern const char kStyleSheet[];
// The script: sorts the table of trials by the column whose header is clicked. It has no "<" and
// "&" either.
extern const char kScript[];
// The SHA-256 of kScript, in Base64: the only script that the page's policy lets run.
extern const char kScriptHash[];

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_LOOK_H_
