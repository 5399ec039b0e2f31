#include "tests/support/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"

namespace baton::testing {
namespace {

// An empty path gives `inherited`; -1 when the file can't be opened.
int OpenStream(const std::string& path, int flags, int inherited) {
  return path.empty() ? inherited : open(path.c_str(), flags | O_CLOEXEC, 0644);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv,
                                                 const ChildFiles& files) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::InternalError("fork failed");
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(OpenStream(files.input, O_RDONLY, STDIN_FILENO), STDIN_FILENO) >= 0 &&
        dup2(OpenStream(files.output, kAppend, STDOUT_FILENO), STDOUT_FILENO) >= 0 &&
        dup2(OpenStream(files.errors, kAppend, STDOUT_FILENO), STDERR_FILENO) >= 0) {
      execv(arguments[0], arguments.data());
    }
    _exit(127);
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) {
    kill(pid_, signal);
  }
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (pid_ > 0) {
    int state = 0;
    if (waitpid(pid_, &state, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError("the process still runs");
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::FailedPreconditionError("the process was reaped before");
}

bool ChildProcess::running() { return pid_ > 0 && !Wait(absl::ZeroDuration()).ok(); }

}  // namespace baton::testing
