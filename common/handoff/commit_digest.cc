#include "common/handoff/commit_digest.h"

#include <string>

#include "common/kv/manifest/digest.h"

namespace baton::handoff {

uint64_t CommitDigest(std::span<const uint64_t> checksums, const worker::v1::Commit& commit) {
  worker::v1::Commit rest = commit;
  rest.clear_digest();
  // Without maps and extensions the encoding of a message is one.
  return kv::DigestOfCommit(checksums, rest.SerializeAsString());
}

}  // namespace baton::handoff
