// A child process of a test: started, watched, killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::testing {

// Where a process reads and writes; an empty path leaves the test's own stream, for `errors` it
// means `output`.
struct ChildFiles {
  std::string output;
  std::string errors = {};
  std::string input = {};
};

// Owns one process; the destructor kills it (SIGKILL) and reaps it. The child also dies with the
// test process. Not thread-safe.
class ChildProcess {
 public:
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv,
                                            const ChildFiles& files);
  // Everything it writes goes to `log_path`.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv,
                                            const std::string& log_path) {
    return Start(argv, ChildFiles{.output = log_path});
  }
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Waits for the end; the exit code, or 128 + signal. kDeadlineExceeded when it still runs.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  bool running();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
};

}  // namespace baton::testing
