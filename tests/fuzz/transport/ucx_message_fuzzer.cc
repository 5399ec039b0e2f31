// Any bytes as a message between UCX peers. With an odd first byte the checksum, which a fuzzer
// can't guess, is made right, so that the checks behind it run. What is accepted has one form: it
// encodes to the bytes that it came from.
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "common/transport/ucx/message.h"

namespace {

constexpr size_t kChecksumBytes = 8;

void Seal(std::string& bytes) {
  const size_t size = bytes.size() - kChecksumBytes;
  const uint64_t checksum = XXH3_64bits(bytes.data(), size);
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    bytes[size + i] = static_cast<char>(checksum >> (8 * i) & 0xff);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if ((data[0] & 1) != 0 && bytes.size() >= kChecksumBytes) {
    Seal(bytes);
  }
  const auto message =
      baton::transport::ucx::DecodeMessage(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (message.ok() && baton::transport::ucx::EncodeMessage(*message) != bytes) {
    std::abort();
  }
  return 0;
}
