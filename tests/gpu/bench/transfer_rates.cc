#include "tests/gpu/bench/transfer_rates.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/transport/transport.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/landing_memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/dense_attention_case.h"
#include "tests/gpu/bench/transfer_ends.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr double kLinkBytesPerSecond = 371e9;
constexpr int kDecodeSteps = 32;

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
  absl::Status Bring(const TransferLine& line) {
    BATON_ASSIGN_OR_RETURN(decode_, Decode::Make());
    BATON_ASSIGN_OR_RETURN(end_, TransferReceiver::Open(line, kMostBytes));
    return absl::OkStatus();
  }

  // "alone", or "receive KIND FIRST_ID COUNT BYTES SUM DECODES".
  absl::StatusOr<std::string> Answer(const TransferLine& line,
                                     const std::vector<std::string>& words) {
    if (words[0] == "alone") {
      BATON_RETURN_IF_ERROR(decode_->Start());
      return absl::StrCat(decode_->Milliseconds());
    }
    const auto kind = static_cast<TransferCarrier::Kind>(std::stoi(words[1]));
    transport::Transport& transport = end_->transport(kind);
    const uint64_t first = std::stoull(words[2]);
    const uint64_t count = std::stoull(words[3]);
    const int64_t bytes = std::stoll(words[4]);
    for (uint64_t id = first; id < first + count; ++id) {
      BATON_RETURN_IF_ERROR(transport.Expect({.window = &end_->window(kind),
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
      for (const transport::Completion& completion :
           transport.Poll(absl::Now() + kTransferPatience)) {
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
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<TransferReceiver> end_;
};

class Sender {
 public:
  Sender(const TransferLine& line, TransferSender& end) : line_(line), end_(end) {}

  absl::Status Bring() {
    line_.Say("alone");  // warms up
    line_.Await();
    line_.Say("alone");
    BATON_ASSIGN_OR_RETURN(alone_ms_, Milliseconds());
    return absl::OkStatus();
  }

  absl::Status Measure(const TransferCarrier& carrier) {
    kind_ = carrier.kind;
    BATON_RETURN_IF_ERROR(end_.Connect(carrier));
    for (size_t bytes = size_t{64} << 10; bytes <= kMostBytes; bytes *= 4) {
      BATON_RETURN_IF_ERROR(Post(bytes, 3, false).status());
      BATON_ASSIGN_OR_RETURN(const Times idle, Post(bytes, 10, false));
      Print(carrier, bytes, idle, false);
      const auto count =
          static_cast<uint64_t>(std::clamp(1.5 * alone_ms_ * 1e-3 / idle.seconds, 2.0, 1000.0));
      BATON_ASSIGN_OR_RETURN(const Times decoding, Post(bytes, count, true));
      Print(carrier, bytes, decoding, true);
    }
    return absl::OkStatus();
  }

 private:
  struct Times {
    double seconds = 0.0;  // of a transfer
    double decode_ms = 0.0;
  };

  // That the receiver's attention took.
  absl::StatusOr<double> Milliseconds() const {
    const std::vector<std::string> answer = line_.Await();
    if (answer.empty()) {
      return absl::InternalError("the receiver failed");
    }
    return std::stod(answer[0]);
  }

  // `count` transfers, one after the other.
  absl::StatusOr<Times> Post(size_t bytes, uint64_t count, bool decodes) {
    const std::span<const std::byte> source(end_.memory(), bytes);
    BATON_ASSIGN_OR_RETURN(const uint64_t sum, end_.landing().WordSum({&source, 1}));
    line_.Say(absl::StrCat("receive ",
                           static_cast<int>(kind_),
                           " ",
                           next_,
                           " ",
                           count,
                           " ",
                           bytes,
                           " ",
                           sum,
                           " ",
                           decodes ? 1 : 0));
    if (line_.Await() != std::vector<std::string>{"ready"}) {
      return absl::InternalError("the receiver failed");
    }
    const absl::Time begin = absl::Now();
    for (uint64_t i = 0; i < count; ++i, ++next_) {
      BATON_RETURN_IF_ERROR(end_.Post({{0, source}}, next_));
      BATON_RETURN_IF_ERROR(end_.Poll().status());
    }
    Times times = {.seconds =
                       absl::ToDoubleSeconds(absl::Now() - begin) / static_cast<double>(count)};
    BATON_ASSIGN_OR_RETURN(times.decode_ms, Milliseconds());
    return times;
  }

  void Print(const TransferCarrier& carrier, size_t bytes, const Times& times, bool decodes) const {
    const bool is_nccl = carrier.kind != TransferCarrier::kIpc;
    const double rate = static_cast<double>(bytes) / times.seconds;
    absl::PrintF(
        "{\"bench\":\"transfer\",\"carrier\":\"%s\",\"blocks\":%d,\"slot_mib\":%d,"
        "\"registered\":%s,\"connect_ms\":%.0f,\"bytes\":%d,\"us\":%.1f,\"gb_per_s\":%.1f,"
        "\"share_of_371\":%.3f,\"decoding\":%s,\"decode_ratio\":%.3f}\n",
        carrier.name(),
        is_nccl ? carrier.sizes.max_blocks : 0,
        is_nccl ? carrier.sizes.slot_bytes >> 20 : 0,
        carrier.kind == TransferCarrier::kNcclRegistered ? "true" : "false",
        end_.connect_ms(),
        bytes,
        times.seconds * 1e6,
        rate * 1e-9,
        rate / kLinkBytesPerSecond,
        decodes ? "true" : "false",
        decodes ? times.decode_ms / alone_ms_ : 1.0);
    std::fflush(stdout);
  }

  const TransferLine& line_;
  TransferSender& end_;
  double alone_ms_ = 0.0;
  TransferCarrier::Kind kind_ = TransferCarrier::kIpc;
  uint64_t next_ = 1;
};

// Those with registered slots come last, so that the others' rows are there if they fail.
std::vector<TransferCarrier> AllCarriers() {
  constexpr std::pair<int32_t, size_t> kBlocksAndMib[] = {
      {1, 32}, {4, 32}, {8, 16}, {8, 32}, {16, 16}, {16, 32}, {16, 64}, {32, 32}};
  std::vector<TransferCarrier> carriers = {TransferCarrier{}};
  for (const auto kind : {TransferCarrier::kNccl, TransferCarrier::kNcclRegistered}) {
    for (const auto& [blocks, slot_mib] : kBlocksAndMib) {
      carriers.push_back({kind, {.slot_bytes = slot_mib << 20, .max_blocks = blocks}});
    }
  }
  return carriers;
}

}  // namespace

absl::Status SendAtRates(const TransferLine& line) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<TransferSender> end,
                         TransferSender::Open(line, kMostBytes));
  Sender sender(line, *end);
  BATON_RETURN_IF_ERROR(sender.Bring());
  for (const TransferCarrier& carrier : AllCarriers()) {
    if (absl::Status status = end->Supports(carrier.kind); absl::IsUnimplemented(status)) {
      std::fprintf(stderr, "no rows with registered slots: %s\n", status.ToString().c_str());
      break;
    }
    BATON_RETURN_IF_ERROR(sender.Measure(carrier));
  }
  return absl::OkStatus();
}

absl::Status ReceiveAtRates(const TransferLine& line) {
  Receiver receiver;
  BATON_RETURN_IF_ERROR(receiver.Bring(line));
  for (std::vector<std::string> words = line.Await(); !words.empty(); words = line.Await()) {
    BATON_ASSIGN_OR_RETURN(const std::string answer, receiver.Answer(line, words));
    line.Say(answer);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
