// KV from one GPU to another, by transport and size, while the receiver is idle and while it
// decodes: two processes, each of which sees one of the machine's first two GPUs. JSON rows:
//
//   gpu_transfer_bench
//
//   carrier             ipc: the receiver's copy engine reads; nccl: with `blocks` thread blocks at
//                       most and slots of `slot_mib`
//   bytes, us           of one transfer, from post to completion, which has the receiver's checksum
//   gb_per_s, share_of_371  10^9 bytes a second, and of what copies over NVLink reach
//   (performance.md
//                       section 2)
//   decoding            whether the receiver's GPU runs decode attention over 64 sequences of 8K
//   decode_ratio        time of that attention to its time alone
//
// A carrier's bytes are checked before it is timed. Status 1 where something failed, which is told.
#include <cuda_runtime_api.h>
#include <driver_types.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"

#include "common/base/status_macros.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/transport.h"
#include "kernels/backend.h"
#include "kernels/core/device_link.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/dense_attention_case.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::kernels::cuda {
namespace {

using transport::IpcTransport;
using transport::NcclTransport;
using transport::Transport;

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr double kLinkBytesPerSecond = 371e9;
constexpr int kDecodeSteps = 32;
constexpr absl::Duration kLong = absl::Seconds(60);

// Lines to and from the other process.
class Line {
 public:
  explicit Line(int fd) : in_(fdopen(fd, "r")), out_(fdopen(dup(fd), "w")) {}
  void Say(const std::string& line) const {
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
  }
  // The words of the next line; none when the other has ended.
  std::vector<std::string> Await() const {
    std::array<char, 4096> line = {};
    if (std::fgets(line.data(), line.size(), in_) == nullptr) {
      return {};
    }
    std::string text(line.data());
    text.pop_back();
    return absl::StrSplit(text, ' ');
  }

 private:
  std::FILE* const in_;
  std::FILE* const out_;
};

// --- The receiver ------------------------------------------------------------------------------

// Attention of steps that go on beside transfers.
class Decode {
 public:
  static absl::StatusOr<std::unique_ptr<Decode>> Make() {
    std::unique_ptr<Decode> decode(new Decode());
    BATON_ASSIGN_OR_RETURN(decode->queue_, DeviceQueue::Create(size_t{512} << 20));
    BATON_RETURN_IF_ERROR(decode->attention_.Prepare(*decode->queue_));
    return decode;
  }
  absl::Status Start() {
    cudaEventRecord(begin_, queue_->stream());
    const ExecContext context = {.queue = queue_.get()};
    for (int32_t step = 0; step < kDecodeSteps; ++step) {
      for (int32_t layer = 0; layer < BenchCase::kLayers; ++layer) {
        BATON_RETURN_IF_ERROR(attention_.Run(context, layer, step));
      }
    }
    cudaEventRecord(end_, queue_->stream());
    return absl::OkStatus();
  }
  // Of what was started; waits for its end.
  double Milliseconds() const {
    float milliseconds = 0.0f;
    cudaEventSynchronize(end_);
    cudaEventElapsedTime(&milliseconds, begin_, end_);
    return double{milliseconds};
  }

 private:
  Decode() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }

  std::unique_ptr<DeviceQueue> queue_;
  DenseAttentionCase attention_{{.rows = 64, .tokens = 8192, .kv_heads = 8, .group = 4},
                                DType::kBF16};
  cudaEvent_t begin_ = nullptr;  // until the process ends
  cudaEvent_t end_ = nullptr;
};

class Receiver {
 public:
  absl::Status Bring(const Line& line) {
    BATON_ASSIGN_OR_RETURN(backend_, Backend::Open("cuda", 1));
    BATON_ASSIGN_OR_RETURN(links_, backend_->MakeLinks());
    MemorySpace& space = *backend_->exec().memory;
    BATON_ASSIGN_OR_RETURN(memory_, space.Allocate(kMostBytes));
    BATON_ASSIGN_OR_RETURN(decode_, Decode::Make());
    BATON_ASSIGN_OR_RETURN(ipc_, IpcTransport::Make({.listens = true, .device = &space.landing()}));
    BATON_ASSIGN_OR_RETURN(
        nccl_, NcclTransport::Make({.links = links_.get(), .memory = &space.landing()}));
    service_ = std::make_unique<transport::LinkService>(nccl_.get());
    nccl_->set_address(server_.Start(*service_));
    std::string hello;
    for (Transport* transport :
         {static_cast<Transport*>(ipc_.get()), static_cast<Transport*>(nccl_.get())}) {
      BATON_ASSIGN_OR_RETURN(windows_.emplace_back(),
                             transport->Register({{memory_.data(), kMostBytes}}, space.landing()));
      absl::StrAppend(&hello,
                      transport->connection_data(),
                      " ",
                      absl::BytesToHexString(windows_.back()->descriptor()),
                      " ");
    }
    line.Say(hello);
    return absl::OkStatus();
  }

  // "alone", or "receive TRANSPORT FIRST_ID COUNT BYTES SUM DECODES".
  absl::StatusOr<std::string> Answer(const Line& line, const std::vector<std::string>& words) {
    if (words[0] == "alone") {
      BATON_RETURN_IF_ERROR(decode_->Start());
      return absl::StrCat(decode_->Milliseconds());
    }
    Transport& transport = words[1] == "0" ? static_cast<Transport&>(*ipc_) : *nccl_;
    const transport::Window* const window = windows_[words[1] == "0" ? 0 : 1].get();
    const uint64_t first = std::stoull(words[2]);
    const uint64_t count = std::stoull(words[3]);
    const int64_t bytes = std::stoll(words[4]);
    for (uint64_t id = first; id < first + count; ++id) {
      BATON_RETURN_IF_ERROR(transport.Expect({.window = window,
                                              .runs = {{0, bytes}},
                                              .transfer_id = id,
                                              .tag = id,
                                              .checksum = transport::Checksum::kWordSum}));
    }
    const bool decodes = words[6] == "1";
    if (decodes) {
      BATON_RETURN_IF_ERROR(decode_->Start());
    }
    line.Say("ready");
    for (uint64_t received = 0; received < count;) {
      for (const transport::Completion& completion : transport.Poll(absl::Now() + kLong)) {
        BATON_RETURN_IF_ERROR(completion.status);
        if (absl::StrCat(completion.checksum) != words[5]) {
          return absl::DataLossError("other bytes came");
        }
        ++received;
      }
    }
    return absl::StrCat(decodes ? decode_->Milliseconds() : 0.0);
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceLinks> links_;
  Memory memory_;
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<IpcTransport> ipc_;
  std::unique_ptr<NcclTransport> nccl_;
  std::unique_ptr<transport::LinkService> service_;
  transport::LocalServer server_;
  std::vector<std::unique_ptr<transport::Window>> windows_;
};

absl::Status Receive(const Line& line) {
  Receiver receiver;
  BATON_RETURN_IF_ERROR(receiver.Bring(line));
  for (std::vector<std::string> words = line.Await(); !words.empty(); words = line.Await()) {
    BATON_ASSIGN_OR_RETURN(const std::string answer, receiver.Answer(line, words));
    line.Say(answer);
  }
  return absl::OkStatus();
}

// --- The sender --------------------------------------------------------------------------------

struct Carrier {
  std::string name;
  LinkSizes sizes = {};
};

class Sender {
 public:
  explicit Sender(const Line& line) : line_(line) {}

  absl::Status Bring() {
    BATON_ASSIGN_OR_RETURN(backend_, Backend::Open("cuda", 1));
    BATON_ASSIGN_OR_RETURN(links_, backend_->MakeLinks());
    MemorySpace* const space = backend_->exec().memory->shared();
    BATON_ASSIGN_OR_RETURN(memory_, space->Allocate(kMostBytes));
    std::vector<uint64_t> words(kMostBytes / sizeof(uint64_t));
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = i * 0x9e3779b97f4a7c15u;
    }
    BATON_RETURN_IF_ERROR(space->Upload(memory_.data(), words.data(), kMostBytes));
    peer_ = line_.Await();
    line_.Say("alone");  // warms up
    line_.Await();
    line_.Say("alone");
    alone_ms_ = std::stod(line_.Await()[0]);
    return absl::OkStatus();
  }

  absl::Status Measure(const Carrier& carrier) {
    const bool is_nccl = carrier.name == "nccl";
    index_ = is_nccl ? 1 : 0;
    std::unique_ptr<Transport> transport;
    if (is_nccl) {
      BATON_ASSIGN_OR_RETURN(transport,
                             NcclTransport::Make({.links = links_.get(),
                                                  .credentials = grpc::InsecureChannelCredentials(),
                                                  .sizes = carrier.sizes}));
    } else {
      BATON_ASSIGN_OR_RETURN(transport, IpcTransport::Make({}));
    }
    const absl::Time begin = absl::Now();
    BATON_ASSIGN_OR_RETURN(const auto connection, transport->Connect(peer_[2 * index_]));
    const double connected_ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
    if (!connection->reads_devices()) {
      return absl::InternalError("the peer can't read this GPU");
    }
    for (size_t bytes = size_t{64} << 10; bytes <= kMostBytes; bytes *= 4) {
      BATON_RETURN_IF_ERROR(Post(*transport, connection, bytes, 3, false).status());
      BATON_ASSIGN_OR_RETURN(const Times idle, Post(*transport, connection, bytes, 10, false));
      Print(carrier, bytes, idle, false, connected_ms);
      const auto count =
          static_cast<uint64_t>(std::clamp(1.5 * alone_ms_ * 1e-3 / idle.seconds, 2.0, 1000.0));
      BATON_ASSIGN_OR_RETURN(const Times decoding,
                             Post(*transport, connection, bytes, count, true));
      Print(carrier, bytes, decoding, true, connected_ms);
    }
    return absl::OkStatus();
  }

 private:
  struct Times {
    double seconds = 0.0;  // of a transfer
    double decode_ms = 0.0;
  };

  // `count` transfers, one after the other.
  absl::StatusOr<Times> Post(Transport& transport,
                             const std::shared_ptr<transport::Connection>& connection,
                             size_t bytes,
                             uint64_t count,
                             bool decodes) {
    const std::span<const std::byte> source(memory_.data(), bytes);
    BATON_ASSIGN_OR_RETURN(const uint64_t sum,
                           backend_->exec().memory->landing().WordSum({&source, 1}));
    line_.Say(absl::StrCat(
        "receive ", index_, " ", next_, " ", count, " ", bytes, " ", sum, " ", decodes ? 1 : 0));
    if (line_.Await() != std::vector<std::string>{"ready"}) {
      return absl::InternalError("the receiver failed");
    }
    const absl::Time begin = absl::Now();
    for (uint64_t i = 0; i < count; ++i, ++next_) {
      BATON_RETURN_IF_ERROR(transport.Post(connection,
                                           {.window = absl::HexStringToBytes(peer_[2 * index_ + 1]),
                                            .runs = {{0, source}},
                                            .transfer_id = next_,
                                            .tag = next_}));
      const std::vector<transport::Completion> sent = transport.Poll(absl::Now() + kLong);
      if (sent.size() != 1 || !sent.front().status.ok()) {
        return sent.empty() ? absl::DeadlineExceededError("no completion") : sent.front().status;
      }
    }
    Times times = {.seconds =
                       absl::ToDoubleSeconds(absl::Now() - begin) / static_cast<double>(count)};
    const std::vector<std::string> answer = line_.Await();
    if (answer.empty()) {
      return absl::InternalError("the receiver failed");
    }
    times.decode_ms = std::stod(answer[0]);
    return times;
  }

  void Print(const Carrier& carrier,
             size_t bytes,
             const Times& times,
             bool decodes,
             double connected_ms) const {
    const double rate = static_cast<double>(bytes) / times.seconds;
    absl::PrintF(
        "{\"bench\":\"transfer\",\"carrier\":\"%s\",\"blocks\":%d,\"slot_mib\":%d,"
        "\"connect_ms\":%.0f,\"bytes\":%d,\"us\":%.1f,\"gb_per_s\":%.1f,\"share_of_371\":%.3f,"
        "\"decoding\":%s,\"decode_ratio\":%.3f}\n",
        carrier.name,
        carrier.name == "nccl" ? carrier.sizes.max_blocks : 0,
        carrier.name == "nccl" ? carrier.sizes.slot_bytes >> 20 : 0,
        connected_ms,
        bytes,
        times.seconds * 1e6,
        rate * 1e-9,
        rate / kLinkBytesPerSecond,
        decodes ? "true" : "false",
        decodes ? times.decode_ms / alone_ms_ : 1.0);
    std::fflush(stdout);
  }

  const Line& line_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceLinks> links_;
  Memory memory_;
  std::vector<std::string> peer_;  // connection data and window of each transport
  double alone_ms_ = 0.0;
  size_t index_ = 0;
  uint64_t next_ = 1;
};

absl::Status Send(const Line& line) {
  Sender sender(line);
  BATON_RETURN_IF_ERROR(sender.Bring());
  const auto nccl = [](int32_t blocks, size_t slot_mib) {
    return Carrier{"nccl", {.slot_bytes = slot_mib << 20, .max_blocks = blocks}};
  };
  for (const Carrier& carrier : {Carrier{"ipc"},
                                 nccl(1, 32),
                                 nccl(4, 32),
                                 nccl(8, 16),
                                 nccl(8, 32),
                                 nccl(16, 16),
                                 nccl(16, 32),
                                 nccl(16, 64),
                                 nccl(32, 32)}) {
    BATON_RETURN_IF_ERROR(sender.Measure(carrier));
  }
  return absl::OkStatus();
}

// Before anything has a thread, or a GPU.
int Run() {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) {
    std::perror("socketpair");
    return 1;
  }
  const bool sends = fork() != 0;
  setenv("CUDA_VISIBLE_DEVICES", sends ? "0" : "1", /*overwrite=*/1);
  close(ends[sends ? 1 : 0]);
  const Line line(ends[sends ? 0 : 1]);
  const absl::Status status = sends ? Send(line) : Receive(line);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", sends ? "sender" : "receiver", status.ToString().c_str());
  }
  std::fflush(stdout);
  _exit(status.ok() ? 0 : 1);  // the receiver ends with the sender's line
}

}  // namespace
}  // namespace baton::kernels::cuda

int main() { return baton::kernels::cuda::Run(); }
