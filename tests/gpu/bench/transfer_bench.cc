// KV from one GPU to another: two processes, each of which sees one of the machine's first two
// GPUs. JSON rows:
//
//   gpu_transfer_bench                      by carrier and size, while the receiver is idle and
//                                           while it decodes
//
//   carrier             ipc: the receiver's copy engine reads; nccl: with `blocks` thread blocks at
//                       most and slots of `slot_mib`, which are `registered` or not (no such rows,
//                       and a line that says why, where NCCL can't)
//   bytes, us           of one transfer, from post to completion, which has the receiver's checksum
//   gb_per_s, share_of_371  10^9 bytes a second, and of what copies over NVLink reach
//                       (performance.md section 2)
//   decoding            whether the receiver's GPU runs decode attention over 64 sequences of 8K
//   decode_ratio        time of that attention to its time alone
//
//   gpu_transfer_bench --chunks=N [--seed=N]   N small chunks by each carrier, in transfers of 1 to
//                                              16, all of whose bytes are looked at
//
// A carrier's bytes are checked before it is timed. Status 1 where something failed, which is told.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "tests/gpu/bench/transfer_chunks.h"
#include "tests/gpu/bench/transfer_ends.h"
#include "tests/gpu/bench/transfer_rates.h"

namespace baton::kernels::cuda {
namespace {

// Whether all arguments are known; `load` has no chunks where rates are asked for.
bool ParseLoad(int argc, char** argv, ChunkLoad& load) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view value = argv[i];
    const bool known =
        (absl::ConsumePrefix(&value, "--chunks=") && absl::SimpleAtoi(value, &load.chunks) &&
         load.chunks > 0) ||
        (absl::ConsumePrefix(&value, "--seed=") && absl::SimpleAtoi(value, &load.seed));
    if (!known) return false;
  }
  return true;
}

absl::Status Send(const TransferLine& line, const ChunkLoad& load) {
  return load.chunks > 0 ? SendChunks(line, load) : SendAtRates(line);
}

absl::Status Receive(const TransferLine& line, const ChunkLoad& load) {
  return load.chunks > 0 ? ReceiveChunks(line, load) : ReceiveAtRates(line);
}

int Run(int argc, char** argv) {
  ChunkLoad load;
  if (!ParseLoad(argc, argv, load)) {
    std::fprintf(stderr, "usage: gpu_transfer_bench [--chunks=N [--seed=N]]\n");
    return 2;
  }
  // Before anything has a thread, or a GPU.
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) {
    std::perror("socketpair");
    return 1;
  }
  const bool sends = fork() != 0;
  setenv("CUDA_VISIBLE_DEVICES", sends ? "0" : "1", /*overwrite=*/1);
  close(ends[sends ? 1 : 0]);
  const TransferLine line(ends[sends ? 0 : 1]);
  const absl::Status status = sends ? Send(line, load) : Receive(line, load);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", sends ? "sender" : "receiver", status.ToString().c_str());
  }
  std::fflush(stdout);
  _exit(status.ok() ? 0 : 1);  // the receiver ends with the sender's line
}

}  // namespace
}  // namespace baton::kernels::cuda

int main(int argc, char** argv) { return baton::kernels::cuda::Run(argc, argv); }
