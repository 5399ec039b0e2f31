#include "services/loadtest/stream/hooks.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/timer_queue.h"

namespace baton::loadtest {
namespace {

std::string DescribeExit(int status) {
  if (WIFEXITED(status)) {
    return absl::StrCat("exit ", WEXITSTATUS(status));
  }
  return absl::StrCat("signal ", WTERMSIG(status));
}

// Starts a process in which no signal is blocked, as some are in this one. 0 or an error number.
int Spawn(const std::string& path, char* const* arguments, pid_t* pid) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int error = posix_spawn(pid, path.c_str(), nullptr, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

absl::StatusOr<std::vector<Hook>> ParseHooks(std::string_view text) {
  std::vector<Hook> hooks;
  const std::string whole(text);
  int number = 0;
  for (absl::string_view line : absl::StrSplit(whole, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    Hook hook;
    if (parts.size() != 2 || !absl::ParseDuration(parts[0], &hook.at) ||
        hook.at < absl::ZeroDuration()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " is not TIME COMMAND, such as 20s kill -STOP 4711"));
    }
    hook.command = parts[1];
    hooks.push_back(std::move(hook));
  }
  return hooks;
}

HookRunner::HookRunner(std::vector<Hook> hooks, const RunClock* clock, TimerQueue* timers)
    : hooks_(std::move(hooks)), clock_(clock) {
  for (const Hook& hook : hooks_) {
    timers->Call(hook.at, [this, &hook] { Start(hook); });
  }
}

void HookRunner::Start(const Hook& hook) {
  std::string shell = "/bin/sh";
  std::string option = "-c";
  std::string command = hook.command;
  const std::array<char*, 4> arguments = {shell.data(), option.data(), command.data(), nullptr};
  Child child{.run = {.at = clock_->Elapsed(), .command = hook.command, .result = ""}};
  const int error = Spawn(shell, arguments.data(), &child.pid);
  if (error != 0) {
    child.pid = 0;
    child.run.result = absl::StrCat("not started: ", std::strerror(error));
  }
  absl::MutexLock lock(&mutex_);
  children_.push_back(std::move(child));
}

std::vector<HookRun> HookRunner::Collect() {
  absl::MutexLock lock(&mutex_);
  std::vector<HookRun> runs;
  for (Child& child : children_) {
    int status = 0;
    if (child.pid != 0 && waitpid(child.pid, &status, WNOHANG) == child.pid) {
      child.run.result = DescribeExit(status);
      child.pid = 0;
    } else if (child.pid != 0) {
      child.run.result = "still running";
    }
    runs.push_back(child.run);
  }
  return runs;
}

}  // namespace baton::loadtest
