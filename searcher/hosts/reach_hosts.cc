// Connects to the hosts of a hostfile, on which ranks are started.
#include "searcher/hosts/reach_hosts.h"

#include <poll.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "base/files.h"
#include "base/version.h"
#include "searcher/hosts/slurm.h"
#include "searcher/processes/host_address.h"

namespace dsat {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAnswerTimeout{60};

bool IsThisMachine(const std::string& name) {
  std::array<char, 256> own = {};
  gethostname(own.data(), own.size() - 1);
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own.data();
}

}  // namespace

void HostReacher::Question::Hear() {
  process.Receive();
  try {
    while (const std::optional<Json> message = process.Next()) {
      if (const auto hello = message->find("hello"); hello != message->end())
        answer = SuperviseHelloFromJson(*hello);
    }
  } catch (const Error&) {
    process.Refuse("it sent a greeting that no supervisor sends; expected the same dsat there");
  }
  if (answer || !process.ended()) return;
  process.Collect();
  problem = process.Prefix() + process.WhyNoReport();
}

void HostReacher::CheckAnswers() const {
  std::string problems;
  for (const Question& question : questions_) {
    if (!question.problem.empty()) problems += (problems.empty() ? "" : "; ") + question.problem;
  }
  if (!problems.empty() && access_.slurm_job.empty()) {
    Throw(ErrorCode::kUnavailable,
          "{}; expected hosts that `{} HOST true` reaches without a password", problems,
          access_.ssh);
  }
  if (!problems.empty()) {
    Throw(ErrorCode::kUnavailable, "job {} of Slurm: {}; expected nodes on which srun starts dsat",
          access_.slurm_job, problems);
  }
  std::string others;
  for (const Question& question : questions_) {
    if (question.answer->version == kVersion) continue;
    others += fmt::format("{}host {}: it has dsat {}", others.empty() ? "" : "; ",
                          question.host->name, Printable(question.answer->version));
  }
  if (others.empty()) return;
  Throw(ErrorCode::kFailedPrecondition, "{}, but this machine has {}; expected the same version",
        others, kVersion);
}

void HostReacher::Wait(std::chrono::milliseconds wait) {
  std::vector<pollfd> lines;
  for (const Question& question : questions_)
    lines.push_back({question.open() ? question.process.fd() : -1, POLLIN, 0});
  poll(lines.data(), lines.size(), static_cast<int>(wait.count()));
  for (Question& question : questions_)
    if (question.open()) question.Hear();
  if (Clock::now() < deadline_) return;
  for (Question& question : questions_) {
    if (!question.open()) continue;
    question.problem =
        fmt::format("host {}: no answer within {} s", question.host->name, kAnswerTimeout.count());
    question.process.Refuse(question.problem);  // Its end is not awaited.
  }
}

// Fills in what the hosts have answered.
void HostReacher::Complete() {
  CheckAnswers();
  for (const Question& question : questions_) {
    const SuperviseHello& hello = *question.answer;
    const std::string& full = question.host->name;
    const std::string name = full.substr(full.find('@') + 1);  // Without the user.
    const Route route = hello.address.empty() ? RouteTo(name) : Route{};
    question.host->num_cores = hello.num_cores;
    question.host->devices = hello.devices;
    question.host->address = !hello.address.empty() ? hello.address
                             : !route.there.empty() ? route.there
                                                    : name;
    if (reached_.runner_address.empty())
      reached_.runner_address = hello.address.empty() ? route.here : hello.runner_address;
  }
  for (LaunchHost& host : reached_.hosts)
    if (host.reach.empty() && !questions_.empty()) host.address = reached_.runner_address;
  if (access_.master_addr.empty()) return;
  // A machine without ranks may not know the address.
  const bool has_ranks = std::ranges::any_of(
      reached_.hosts, [](const LaunchHost& host) { return host.reach.empty(); });
  if (has_ranks && RouteTo(access_.master_addr).there.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "--master_addr {}: this machine finds no address for it; expected a name or an address "
          "of the first host",
          Printable(access_.master_addr));
  }
  reached_.hosts.at(0).address = access_.master_addr;
}

HostReacher::HostReacher(const std::vector<Host>& hosts, const HostAccess& access,
                         const std::string& dsat_binary)
    : access_(access), deadline_(Clock::now() + kAnswerTimeout) {
  std::vector<LaunchHost>& reached = reached_.hosts;
  reached.reserve(hosts.size());  // Questions point into it.
  const Host* own = nullptr;
  for (const Host& host : hosts) {
    LaunchHost& added = reached.emplace_back();
    added.name = host.name;
    added.slots = host.slots;
    added.environment = access.environment;
    added.is_listed = access.slurm_job.empty();
    if (!access.slurm_job.empty()) {
      added.reach = ReachBySrun(access.slurm_job, host.name);
    } else if (IsThisMachine(host.name)) {
      if (own != nullptr) {
        Throw(ErrorCode::kInvalidArgument,
              "the hostfile: {} and {} are both this machine, whose slots would count twice; "
              "expected one of them",
              own->name, host.name);
      }
      own = &host;
      continue;
    } else {
      added.reach = {"/bin/sh", "-c", "exec " + access.ssh + " \"$@\"", "sh", host.name};
    }
    questions_.push_back({&added, HostProcess(added, dsat_binary)});
  }
}

std::optional<ReachedHosts> HostReacher::Poll(std::chrono::milliseconds wait) {
  if (IsOpen()) Wait(wait);
  if (IsOpen()) return std::nullopt;
  Complete();
  return reached_;
}

ReachedHosts ReachHosts(const std::vector<Host>& hosts, const HostAccess& access,
                        const std::string& dsat_binary) {
  HostReacher reacher(hosts, access, dsat_binary);
  while (true) {
    if (const auto reached = reacher.Poll(kAnswerTimeout)) return *reached;
  }
}

}  // namespace dsat
