// Bytes per second of each transport between two ends of one process, over the machine's loopback,
// beside what one thread copies there. One transfer of pages of 64 KiB at a time, to where other
// pages lay before; the bytes are checked first. A peer is UCX's own shared memory, which no
// worker uses (ucx_shared_memory.h).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "common/transport/transport.h"
#include "common/transport/ucx/ucx_transport.h"
#include "kernels/core/landing_memory.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/bench/transport/ucx_shared_memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

constexpr size_t kPageBytes = size_t{64} << 10;

// With the slots that workers have.
class UcxWithDefaults final : public TransportPair {
 public:
  UcxWithDefaults() {
    sender_ = *UcxTransport::Make({});
    StartReceiver();
  }
  void KillReceiver() override { receiver_.reset(); }
  void StartReceiver() override { receiver_ = *UcxTransport::Make({.listen = "127.0.0.1:0"}); }
};

std::unique_ptr<TransportPair> MakePair(const std::string& kind) {
  return kind == "ucx" ? std::make_unique<UcxWithDefaults>() : TransportPair::Make(kind);
}

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// A sender's pages, and where they go: behind one another, but from last to first.
class Transfers {
 public:
  Transfers(const std::string& kind, size_t bytes)
      : pair_(MakePair(kind)), source_(RandomBytes(bytes)), target_(bytes) {
    window_ = *pair_->receiver().Register({std::span(target_)}, kernels::HostLanding());
    connection_ = *pair_->sender().Connect(pair_->receiver().connection_data());
    const std::span<const std::byte> placed = pair_->Place(source_);
    const size_t page_bytes = std::min(bytes, kPageBytes);
    for (size_t page = bytes / page_bytes; page-- > 0;) {
      sent_.push_back({.offset = static_cast<int64_t>(bytes - (page + 1) * page_bytes),
                       .source = placed.subspan(page * page_bytes, page_bytes)});
      expected_.push_back(
          {.offset = sent_.back().offset, .size_bytes = static_cast<int64_t>(page_bytes)});
    }
  }

  // False when a side has an error.
  bool One() {
    const uint64_t id = ++next_;
    return pair_->receiver()
               .Expect({.window = window_.get(), .runs = expected_, .transfer_id = id, .tag = id})
               .ok() &&
           pair_->sender()
               .Post(connection_,
                     {.window = window_->descriptor(), .runs = sent_, .transfer_id = id, .tag = id})
               .ok() &&
           Ended(pair_->sender()) && Ended(pair_->receiver());
  }
  bool Arrived() const {
    return std::all_of(sent_.begin(), sent_.end(), [&](const SendRun& run) {
      return std::memcmp(target_.data() + run.offset, run.source.data(), run.source.size()) == 0;
    });
  }

 private:
  static bool Ended(Transport& transport) {
    const auto completions = transport.Poll(absl::Now() + absl::Seconds(20));
    return completions.size() == 1 && completions[0].status.ok();
  }

  const std::unique_ptr<TransportPair> pair_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::unique_ptr<Window> window_;
  std::shared_ptr<Connection> connection_;
  std::vector<SendRun> sent_;
  std::vector<ReceiveRun> expected_;
  uint64_t next_ = 0;
};

// The same pages by UCX's shared memory.
class SharedMemoryPuts {
 public:
  explicit SharedMemoryPuts(size_t bytes)
      : source_(RandomBytes(bytes)),
        target_(bytes),
        page_bytes_(std::min(bytes, kPageBytes)),
        peer_(UcxSharedMemory::Create(target_)) {}

  absl::Status status() const { return peer_.status(); }
  bool One() {
    for (size_t at = 0; at < source_.size(); at += page_bytes_) {
      if (!(*peer_)->Put(std::span(source_).subspan(at, page_bytes_), Placed(at)).ok()) {
        return false;
      }
    }
    return (*peer_)->Flush().ok();
  }
  bool Arrived() const {
    for (size_t at = 0; at < source_.size(); at += page_bytes_) {
      if (std::memcmp(source_.data() + at, target_.data() + Placed(at), page_bytes_) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  // Where the page at this offset belongs.
  size_t Placed(size_t at) const { return source_.size() - at - page_bytes_; }

  const std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  const size_t page_bytes_;
  const absl::StatusOr<std::unique_ptr<UcxSharedMemory>> peer_;
};

template <typename Subject>
void Measure(benchmark::State& state, Subject& subject) {
  if (!subject.One() || !subject.Arrived()) {
    state.SkipWithError("the bytes did not arrive");
    return;
  }
  for (auto _ : state) {
    if (!subject.One()) {
      state.SkipWithError("a transfer failed");
      return;
    }
  }
  kernels::Report(state, kernels::Machine(1).limits, 0, static_cast<double>(state.range(0)));
}

void Transfer(benchmark::State& state, const std::string& kind) {
  Transfers transfers(kind, static_cast<size_t>(state.range(0)));
  Measure(state, transfers);
}

void PutToSharedMemory(benchmark::State& state) {
  SharedMemoryPuts puts(static_cast<size_t>(state.range(0)));
  if (!puts.status().ok()) {
    state.SkipWithError(puts.status().ToString().c_str());
    return;
  }
  Measure(state, puts);
}

void Copy(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> source(bytes, std::byte{1});
  std::vector<std::byte> target(bytes);
  for (auto _ : state) {
    for (size_t at = 0; at < bytes; at += kPageBytes) {
      std::memcpy(target.data() + at, source.data() + at, std::min(kPageBytes, bytes - at));
    }
    benchmark::ClobberMemory();
  }
  kernels::Report(state, kernels::Machine(1).limits, 0, static_cast<double>(bytes));
}

[[maybe_unused]] const int kRegistered = [] {
  std::vector<std::string> kinds = {"ipc_shared", "ipc", "grpc"};
  if (UcxTransport::available()) {
    kinds.emplace_back("ucx");
  }
  const auto sized = [](benchmark::internal::Benchmark* bench) {
    bench->RangeMultiplier(16)->Range(int64_t{64} << 10, int64_t{256} << 20)->UseRealTime();
  };
  sized(benchmark::RegisterBenchmark("copy", Copy));
  if (UcxTransport::available()) {
    sized(benchmark::RegisterBenchmark("ucx_shared_memory", PutToSharedMemory));
  }
  for (const std::string& kind : kinds) {
    sized(benchmark::RegisterBenchmark(kind.c_str(), Transfer, kind));
  }
  return 0;
}();

}  // namespace
}  // namespace baton::transport

BENCHMARK_MAIN();
