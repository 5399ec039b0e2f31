// By what a peer on the same machine finds a worker.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::transport::ipc {

// "machine/socket". The machine is the kernel's boot id, so that a worker elsewhere is known to be
// elsewhere without a try. The socket is a name of 128 random bits in the abstract namespace, which
// belongs to the machine's or container's network namespace and is gone with its process.
struct ConnectionData {
  std::string machine;
  std::string socket;

  std::string ToString() const;
  // Of a new socket on this machine. kUnavailable when the system does not say which one it is.
  static absl::StatusOr<ConnectionData> Make();
  // kInvalidArgument when it is not of the form, kUnavailable when it is of another machine.
  static absl::StatusOr<ConnectionData> Parse(std::string_view text);
};

}  // namespace baton::transport::ipc
