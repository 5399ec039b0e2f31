#include "common/kv/manifest/digest.h"

#include <xxhash.h>

#include <array>
#include <new>

#include "common/base/check.h"

namespace baton::kv {

uint64_t Xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Xxh3Stream::State {
  XXH3_state_t* xxh3 = nullptr;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  state_->xxh3 = XXH3_createState();
  if (state_->xxh3 == nullptr) {
    throw std::bad_alloc();
  }
  BATON_CHECK(XXH3_64bits_reset(state_->xxh3) == XXH_OK);
}

Xxh3Stream::~Xxh3Stream() { XXH3_freeState(state_->xxh3); }

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  BATON_CHECK(XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t Xxh3Stream::value() const { return XXH3_64bits_digest(state_->xxh3); }

uint64_t DigestOfCommit(std::span<const uint64_t> checksums, std::string_view commit) {
  Xxh3Stream stream;
  for (const uint64_t checksum : checksums) {
    std::array<std::byte, sizeof(checksum)> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
    }
    stream.Update(bytes);
  }
  stream.Update(std::as_bytes(std::span(commit)));
  return stream.value();
}

}  // namespace baton::kv
