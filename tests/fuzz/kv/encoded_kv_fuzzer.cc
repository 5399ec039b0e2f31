// A prompt from another worker: any bytes as its format's state and as its pages. Byte 0 chooses
// the policy and, by its highest bit, whether what a fuzzer can't guess is made right (counts of
// diffkv, static chunk ids of shadowkv), so that tokens are decoded from the pages too; byte 1 says
// how many. Byte 2 is the state's length; the bytes behind it fill the pages, again and again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace {

using baton::kv::CodecWorker;
using baton::kv::EncodedKv;
using baton::kv::WindowShape;

constexpr const char* kPolicies[] = {
    "diffkv:w=8,ah=2,al=0.5",
    "diffkv:high=k8v8,low=k4v4,policy=paper,w=4,ah=3,al=0.5",
    "shadowkv:rank=8,budget=32,outliers=2,local=2",
    "shadowkv:rank=8,sel=q2,budget=16,outliers=1,local=1,v=bf16,a=int8",
    "shadowkv:rank=8,sel=q2,budget=16,outliers=1,local=1,joint=20",
};
constexpr int32_t kPromptTokens = 90;
constexpr int32_t kMaxTokens = 24;
constexpr uint32_t kHeads = baton::kv::kTestLayers * baton::kv::kTestKvHeads;

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

// High and low counts of every head, taken from the state's bytes as they are.
std::string PossibleCounts(std::span<const uint8_t> bytes) {
  std::string state;
  const auto at = [&](size_t i) { return bytes.empty() ? 0u : bytes[i % bytes.size()]; };
  for (uint32_t head = 0; head < kHeads; ++head) {
    const uint32_t high = at(2 * head) % (kPromptTokens + 1);
    const uint32_t low = at(2 * head + 1) % (kPromptTokens + 1 - high);
    for (const uint32_t count : {high, low}) {
      state += std::string{static_cast<char>(count), 0, 0, 0};
    }
  }
  return state;
}

void FillPages(std::span<const uint8_t> bytes, const WindowShape& shape, EncodedKv& kv) {
  size_t next = 0;
  for (const std::span<std::byte> page : WindowPages(kv, shape)) {
    for (std::byte& byte : page) {
      byte = bytes.empty() ? std::byte{0} : static_cast<std::byte>(bytes[next++ % bytes.size()]);
    }
  }
}

void CheckSentPages(const CodecWorker& worker,
                    const char* policy,
                    const std::vector<int32_t>& sent) {
  const int32_t most = worker.Window(policy, kPromptTokens).pages_per_layer;
  Require(sent.size() == baton::kv::kTestLayers);
  for (const int32_t pages : sent) {
    Require(pages >= 0 && pages <= most);
  }
}

void Land(const CodecWorker& worker, std::span<const uint8_t> input) {
  const char* policy = kPolicies[(input[0] & 0x7f) % std::size(kPolicies)];
  const bool repair = (input[0] & 0x80) != 0;
  const bool shadowkv = std::string_view(policy).starts_with("shadowkv");
  const size_t state_size = std::min<size_t>(input[2], input.size() - 3);
  const auto state_bytes = input.subspan(3, state_size);
  std::string state(state_bytes.begin(), state_bytes.end());
  const auto kv = worker.Allocate(policy, kPromptTokens, kMaxTokens);
  FillPages(input.subspan(3 + state_size), worker.Window(policy, kPromptTokens), *kv);
  if (repair && shadowkv) {
    baton::kv::RepairShadowKvIds(policy, kPromptTokens, *kv);
    state.clear();
  } else if (repair) {
    state = PossibleCounts(state_bytes);
  }
  const auto sent = kv->SentPages(state, baton::kv::kTestLayers);
  const absl::Status adopted = kv->Adopt(state, baton::kv::kTestLayers);
  Require(sent.ok() || absl::IsInvalidArgument(sent.status()));
  Require(adopted.ok() || absl::IsInvalidArgument(adopted));
  Require(sent.ok() || !adopted.ok());
  Require(!repair || adopted.ok());
  if (sent.ok()) {
    CheckSentPages(worker, policy, *sent);
  }
  if (adopted.ok()) {
    kv->Trim();
    Require(baton::kv::Decode(*kv, kPromptTokens, input[1] % (kMaxTokens + 1), 1).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const CodecWorker& worker =
      *new CodecWorker({.diffkv_bytes = 1 << 20, .shadowkv_bytes = 1 << 20});
  if (size < 3) {
    return 0;
  }
  Land(worker, std::span(data, size));
  for (const auto& [id, format] : worker.codecs->formats()) {
    Require(format->pool().free == format->pool().total);
  }
  return 0;
}
