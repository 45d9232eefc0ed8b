// Finds out why ranks ended, from their exit codes and the ends of their logs.
//
// The texts are those of DeepSpeed, PyTorch, CUDA, NCCL and the C++ runtime. The word "error" alone
// is not searched for, because libraries also write it without a failure.
#include "searcher/scripts/exit_classifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <deque>

#include "base/regex.h"

namespace dsat {
namespace {

struct Rule {
  TrialState state;
  const char* what;
  const char* exceptions;  // Names of exceptions, where one is reported and not only mentioned.
  const char* texts;       // Anywhere.
};

// The first match counts. Other programs share the host, so that a shortage of its memory says
// nothing about the configuration.
constexpr std::array kRules = {
    Rule{TrialState::kInfeasible, "invalid configuration",
         "DeepSpeedConfigError|ZeRORuntimeException|pydantic[\\w.]*ValidationError",
         "Extra inputs are not permitted|Check batch related parameters"
         "|(batch size|per gpu|accumulation steps): \\S+ has to be greater than 0"
         "|Duplicate keys in DeepSpeed config|incompatible with pipeline|untested ZeRO Optimizer"
         "|not supported with ZeRO|unsupported mix of model_dtype"
         "|the data loader has no whole micro-batch"},
    Rule{TrialState::kInfeasible, "out of device memory", "OutOfMemoryError",
         "(?m:^|Error: |error: |Exception: )(CUDA|HIP) out of memory"
         "|CUDA error: out of memory|CUDA driver error: out of memory"
         "|Triton Error \\[CUDA\\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
         "|CUBLAS_STATUS_ALLOC_FAILED"
         "|CUDNN_STATUS_(ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION)_FAILED"
         "|NCCL.*out of memory|Cuda failure.*out of memory|Tried to allocate"},
    Rule{TrialState::kFailed, kNoHostMemory, "MemoryError",
         "DefaultCPUAllocator: can't allocate|Cannot allocate memory|std::bad_alloc"
         "|cudaHostAlloc|pin_memory.*fail"},
    Rule{TrialState::kFailed,
         "the trainer's arguments contradict the config; add those that it names to the entrypoint",
         "", "mismatch TrainingArguments"},
    Rule{TrialState::kFailed, "the loss scale cannot fall further", "",
         "Current loss scale already at minimum"},
    Rule{TrialState::kFailed, "a port, the network or the disk failed", "",
         "EADDRINUSE|Address already in use|server socket has failed|Connection refused"
         "|ncclSystemError|No space left"},
};

// The name stands at the start of a line, or behind what loggers and launchers put there, and its
// message or the line's end follows. Tracebacks indent their lines of source by four blanks.
std::string PatternOf(const Rule& rule) {
  if (*rule.exceptions == '\0') return rule.texts;
  return fmt::format(
      R"(((?m:^) {{0,3}}|([\]>:)|-]|ERROR|CRITICAL|FATAL)[ \t]*)[\w.]*({0})(?m:$|[:(]))"
      R"(|(ERROR|CRITICAL|FATAL):[\w.]+:[\w.]*({0})\b|{1})",
      rule.exceptions, rule.texts);
}

// The line around `position` and the items of the list below it: "- ds a=1 vs hf b=2".
std::string QuoteWithItems(std::string_view text, size_t position) {
  std::string quote = Quote(LineAround(text, position));
  size_t end = std::min(text.find('\n', position), text.size());
  while (end + 1 < text.size() && quote.size() < kMaxQuoteBytes) {
    const size_t next = end + 1;
    end = std::min(text.find('\n', next), text.size());
    const std::string item = Quote(text.substr(next, end - next));
    if (!item.starts_with("- ")) break;
    quote += fmt::format(" {}", item);
  }
  return quote;
}

// Returns why the compiler failed that PyTorch ran for an extension, by its first error and with
// the package that is known to be missing; nullopt if no extension has failed to build.
std::optional<std::string> CompilerFailure(std::string_view text) {
  static const RE2 kFailed("Error building extension|Ninja is required to load C\\+\\+ extensions",
                           RegexOptions());
  static const RE2 kCompilerError(
      R"((?m)^(\S+(:\d+|\(\d+\)): (?:fatal )?error: .*|\S+sh: \d+: \S+: not found)"
      R"(|ccache: error: .*|.*Ninja is required.*)$)",
      RegexOptions());
  if (!RE2::PartialMatch(Piece(text), kFailed)) return std::nullopt;
  std::string error;
  if (!RE2::PartialMatch(Piece(text), kCompilerError, &error)) return std::nullopt;
  std::string reason = "an extension of PyTorch does not compile: " + Quote(error);
  for (const ExtensionNeed& need : kExtensionNeeds) {
    if (error.find(need.said) != std::string::npos)
      return fmt::format("{}; install {}", reason, need.to_install);
  }
  return reason;
}

// Whether the last error of a log is a mistake of the script or of its arguments, which the next
// attempt makes again. An extension that another rank was still compiling is none.
bool ComesAgain(std::string_view log) {
  static const RE2 kMistake(
      R"((^|[\s.])(Import|ModuleNotFound|Syntax|Indentation|Name|UnboundLocal|Attribute|Type|Value)"
      R"(|Key|Index|ZeroDivision|FileNotFound|JSONDecode|NotImplemented|Unreachable)Error\b)",
      RegexOptions());
  static const RE2 kWrongCommand(
      R"((?ms)^usage: .*^\S+: error: |^dsat: cannot run [^\n]*: No such file)", RegexOptions());
  const std::string error = LastError(log);
  const bool is_extension = error.find("shared object") != std::string::npos;
  return (RE2::PartialMatch(error, kMistake) && !is_extension) ||
         RE2::PartialMatch(Piece(log), kWrongCommand);
}

// The rank whose log has the error that is nearest to the cause, the first failed one before all
// others; nullopt if no log has an error.
std::optional<size_t> RankThatExplains(size_t first, const std::vector<std::string>& logs) {
  std::optional<size_t> found;
  int least = 3;
  const auto look = [&](size_t rank) {
    const std::string error = LastError(logs[rank]);
    if (error.empty() || DistanceFromCause(error) >= least) return;
    least = DistanceFromCause(error);
    found = rank;
  };
  if (first < logs.size()) look(first);
  for (size_t rank = 0; rank < logs.size(); ++rank)
    look(rank);
  return found;
}

// DescribeExit and, if another rank's log explains the end, what that one says.
std::string DescribeFailure(const ExitReport& exit, const std::vector<std::string>& logs,
                            std::optional<size_t> explains, std::string_view process) {
  const auto first = static_cast<size_t>(exit.first_failed_rank);
  ExitReport report = exit;
  if (explains == first && exit.lost_host < 0) report.log_tail = logs[first];
  std::string text = DescribeExit(report, process);
  if (!explains || explains == first) return text;
  return fmt::format("{}; {} {} says: {}", text, process, *explains, LastError(logs[*explains]));
}

}  // namespace

std::optional<LogFinding> ClassifyLog(std::string_view log) {
  const std::string text = WithoutColors(log);
  if (std::optional<std::string> failure = CompilerFailure(text))
    return LogFinding{TrialState::kFailed, *std::move(failure), /*recurs=*/true};
  static const std::deque<RE2> patterns = [] {
    std::deque<RE2> compiled;
    for (const Rule& rule : kRules)
      compiled.emplace_back(PatternOf(rule), RegexOptions());
    return compiled;
  }();
  for (size_t i = 0; i < kRules.size(); ++i) {
    // A traceback ends with the error; its lines of source may contain the same words.
    std::optional<size_t> last;
    re2::StringPiece match;
    for (size_t from = 0; patterns[i].Match(text, from, text.size(), RE2::UNANCHORED, &match, 1);
         from = *last + match.size())
      last = static_cast<size_t>(match.data() - text.data());
    if (!last) continue;
    return LogFinding{kRules[i].state,
                      fmt::format("{}: {}", kRules[i].what, QuoteWithItems(text, *last))};
  }
  return std::nullopt;
}

std::string DivergedLoss(std::string_view log) {
  // "loss: nan", "loss=nan", "{'loss': nan, ..."; not "val_loss_scale".
  static const RE2 kLoss(R"((?m)^(.*?\bloss\b['"]?[ \t]*[:=]?[ \t]*['"]?(-?nan\b|[-+]?[0-9]).*)$)",
                         RegexOptions(/*ignores_case=*/true));
  re2::StringPiece rest = Piece(log);
  std::string last, line, value;
  while (RE2::FindAndConsume(&rest, kLoss, &line, &value))
    last = std::tolower(value.back()) == 'n' ? Quote(line) : "";
  return last.empty() ? "" : fmt::format("training diverges: {}", last);
}

std::string WhyStuck(std::string_view log) {
  const std::string last = LastLine(log);
  for (const char* text : {"torch_extensions", "extensions root", "Emitting ninja build file",
                           "Building extension module", "Loading extension module"}) {
    if (last.find(text) == std::string::npos) continue;
    return fmt::format(
        "it waits for PyTorch's compiled extensions (\"{}\"): if nothing compiles "
        "there, remove the files named \"lock\" in that folder, which a killed "
        "process has left",
        last);
  }
  return "";
}

Outcome ClassifyExit(const ExitReport& exit, const std::vector<std::string>& logs,
                     std::string_view process) {
  const auto first = static_cast<size_t>(std::max(exit.first_failed_rank, 0));
  std::optional<LogFinding> finding;
  if (first < logs.size()) finding = ClassifyLog(logs[first]);
  for (size_t rank = 0; rank < logs.size(); ++rank) {
    if (finding && finding->state == TrialState::kInfeasible) break;
    std::optional<LogFinding> other = ClassifyLog(logs[rank]);
    if (other && other->state == TrialState::kInfeasible) finding = std::move(other);
  }
  if (finding && finding->state == TrialState::kInfeasible)
    return {finding->state, finding->reason};
  if (const std::string why = KilledForHostMemory(exit, process); !why.empty())
    return {TrialState::kFailed, why};
  if (finding && finding->reason.starts_with(kNoHostMemory))
    return {finding->state, finding->reason};
  static const RE2 kOutOfMemory(R"(\bout of memory\b)", RegexOptions(/*ignores_case=*/true));
  static const RE2 kHint(R"(\b(if|hint|tip)\b.*\bout of memory\b)",
                         RegexOptions(/*ignores_case=*/true));
  if (first < logs.size()) {  // In other lines, this may be a hint.
    for (const std::string& line : {LastError(logs[first]), LastLine(logs[first])}) {
      if (RE2::PartialMatch(line, kOutOfMemory) && !RE2::PartialMatch(line, kHint))
        return {TrialState::kInfeasible, fmt::format("out of memory: {}", line)};
    }
  }
  if (finding) return {finding->state, finding->reason, finding->recurs};
  if (exit.first_failed_rank < 0) return {TrialState::kFailed, "ended without a measurement"};
  const std::optional<size_t> explains = RankThatExplains(first, logs);
  return {TrialState::kFailed, DescribeFailure(exit, logs, explains, process),
          first < logs.size() && ComesAgain(logs[explains.value_or(first)])};
}

}  // namespace dsat
