// KV formats that are encoded once the prompt is computed: what a sequence has, and what executes
// a format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/params.h"

namespace baton::kv {

class EncodedKv;
class StagedWindow;

// What attention over a sequence has read, summed over calls.
struct AttentionCounters {
  int64_t heads = 0;            // (step, model layer, KV head) triples
  int64_t attended_tokens = 0;  // summed over them
  int64_t hits = 0;             // selected KV chunks that were selected in the step before
  int64_t misses = 0;           // the others
};

// The newest token of one sequence: row `row` of the queries or entries that go with it.
struct DecodeRow {
  EncodedKv* kv = nullptr;
  int32_t row = 0;
  int32_t position = 0;
};

// Rows of one step whose sequences have one codec. Executor thread, while the step lasts.
class DecodeRows {
 public:
  virtual ~DecodeRows() = default;
  // Takes one new token of each sequence into a stored layer, before that layer's attention.
  virtual absl::Status Append(const KvEntries& entries) = 0;
  // Attention of one query per sequence over what its sequence keeps.
  virtual absl::Status Attend(const KvQueries& queries) = 0;
};

// Executes one format for the sequences that have it. Executor thread.
class KvCodec {
 public:
  virtual ~KvCodec() = default;
  // Before a step: what ops have to be told of its rows goes to `arrays`, which are uploaded before
  // the first Append. `rows`, which are borrowed, are of different sequences.
  virtual absl::StatusOr<std::unique_ptr<DecodeRows>> Prepare(std::span<const DecodeRow> rows,
                                                              kernels::StepArrays& arrays) = 0;
};

// A prompt in dense pages, where prefill computes it whatever becomes of it afterwards.
struct WorkingKv {
  kernels::DensePages pages;
  DenseTable table;            // where ops read it
  DenseTable host_table = {};  // the same where the host reads it; of an extension
};

// The queries of consecutive prompt rows of one sequence.
struct PromptRows {
  int32_t row_begin = 0;  // of the tile that `KvQueries` describes
  int32_t row_count = 0;
  const int32_t* positions = nullptr;     // [row_count]
  const int32_t* op_positions = nullptr;  // the same, where ops read them

  // Whether these are the same rows of the same tile: several tiles of a step may begin with the
  // same position, those of a SwiftKV model's lower layers and those of its upper ones.
  bool Same(const PromptRows& other) const {
    return row_begin == other.row_begin && row_count == other.row_count &&
           positions[0] == other.positions[0];
  }
};

// The pages of an encoded layer, a prefix of those of its window: how many, and their bytes in as
// few pieces as they lie.
struct EncodedLayer {
  int32_t pages = 0;
  std::vector<std::span<const std::byte>> memory;
};

// The same for who waits until a device has coded it.
using CodedLayer = std::function<absl::StatusOr<EncodedLayer>()>;

// The KV of one sequence in an encoded format, with the pool memory that it may need. Made and
// destroyed by the engine thread (it gives its memory back then); everything else is called by the
// executor thread while a step refers to the sequence, and by the engine thread when none does.
//
// Three lives: prefilled here (Observe, EncodeLayer, then decode), prefilled here for another
// worker (Observe, EncodeLayer, LayerPages, State), landed here (Window is written from outside,
// Adopt, then decode). Pages of a device are copied to and from host memory on the way: a prompt is
// adopted with AdoptStaged, and its staged pages go to Window before the first step that refers to
// it.
//
// A sequence that holds the tokens [0, B) can be extended to a prompt of N tokens, whose new ones
// are computed here: EncodedFormat::Extend, then AttendExtension for the rows of positions [B, N)
// in every layer, in order, and EncodeLayer for every stored layer; then it decodes again. Results
// do not depend on how the extension is cut into steps.
class EncodedKv {
 public:
  virtual ~EncodedKv() = default;

  virtual KvCodec& codec() const = 0;
  // Tokens whose KV is held now: the prompt's once every layer is encoded or adopted, those of an
  // extension once every layer has taken them in, and every token appended since.
  virtual int64_t tokens() const = 0;

  // A step that refers to the sequence begins: brings what ops read of it to where they read it.
  // Executor thread, before the step's first op. On the host only steps with rows of an extension
  // need the call.
  virtual absl::Status PrepareStep() { return absl::OkStatus(); }

  // In a step that computes more of the prompt, or its last tokens: steps before have written its
  // first `tokens` tokens in all stored layers. What of coding needs no others may begin beside the
  // step, or not. Not in extensions.
  virtual absl::Status TokensWritten(const WorkingKv& /*working*/, int64_t /*tokens*/) {
    return absl::OkStatus();
  }
  // Prompt positions from here on have their queries observed; the prompt's length: none are.
  virtual int64_t first_observed() const = 0;
  // The queries of prompt rows at or behind first_observed(), in each model layer that reads the
  // stored layer; the rows' keys are in the working pages.
  virtual absl::Status Observe(const WorkingKv& working,
                               const PromptRows& rows,
                               const KvQueries& queries) = 0;
  // The whole prompt is written, and observed, in this stored layer: encodes it, or, in an
  // extension, takes the new tokens in. Layers come in any order, each once. When the first upper
  // layer of a SwiftKV model comes, the whole prompt is written in all of them.
  virtual absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) = 0;
  // The last call of the step in which the prompt's last layer was encoded, behind its draws: the
  // host learns what Trim and ResidentBytes have to know, and waits for it where ops run behind the
  // host.
  virtual absl::Status Settle() { return absl::OkStatus(); }
  // Before a step with rows of an extension, behind PrepareStep, for each of its tiles: what ops
  // have to be told of them goes to `arrays`, which are uploaded before the first AttendExtension.
  virtual absl::Status PrepareExtension(const WorkingKv& /*working*/,
                                        const PromptRows& /*rows*/,
                                        kernels::StepArrays& /*arrays*/) {
    return absl::OkStatus();
  }
  // Attention of extension rows, in each model layer that reads the stored layer: over the encoded
  // tokens and, exact and causal, the extension's own in `working`, of which only pages from
  // B / page_tokens on exist. Writes the rows of queries.out and observes rows at or behind
  // first_observed(). Rows of a layer come in order of their positions. kUnimplemented for a format
  // whose Extend always returns false.
  virtual absl::Status AttendExtension(const WorkingKv& /*working*/,
                                       const PromptRows& /*rows*/,
                                       const KvQueries& /*queries*/) {
    return absl::UnimplementedError("the KV format can't be extended");
  }

  // The pages of an encoded layer. On a device they are known after Settle.
  virtual EncodedLayer LayerPages(int32_t kv_layer) const = 0;
  // On a device, right behind EncodeLayer: what is started on `copies` from now on waits for what
  // codes the layer. The same pages, to be asked for when a mark that is made afterwards has been
  // waited for: by one thread, once, in the order in which layers were encoded, while the sequence
  // lives and nothing is appended to it.
  virtual absl::StatusOr<CodedLayer> FollowCoding(kernels::CopyQueue& /*copies*/,
                                                  int32_t /*kv_layer*/) {
    return absl::UnimplementedError("the KV format is not coded on a device");
  }
  // What a receiver needs besides the pages, once every layer is encoded.
  virtual std::string State() const = 0;

  // Where the first `pages` pages of a layer land that another worker sends, in as few pieces as
  // they lie.
  virtual std::vector<std::span<std::byte>> Window(int32_t kv_layer, int32_t pages) = 0;
  // Takes over the landed pages of the first `layers` layers; the others are encoded here later.
  // `state` comes from outside: kInvalidArgument when it can't be of this prompt and these layers,
  // and nothing is changed.
  virtual absl::Status Adopt(std::string_view state, int32_t layers) = 0;
  // Adopt on a device. What has to be looked at of the pages is looked at in `staged`.
  virtual absl::Status AdoptStaged(std::string_view state,
                                   int32_t layers,
                                   const StagedWindow& /*staged*/) {
    return Adopt(state, layers);
  }
  // Pages of each of the first `layers` layers that `state` says were sent. kInvalidArgument as for
  // Adopt.
  virtual absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                         int32_t layers) const = 0;

  // Layers from `layer_begin` on are encoded by another worker than the one that observes them:
  // what Observe gathers of them is at `scores`, where ops read it, and is handed over with them;
  // there EncodeLayer reads it. Sums [layers][kv_heads][prompt_tokens], zeros before the first
  // Observe. Called before anything else; for formats that score.
  virtual void PlaceWindowScores(int32_t /*layer_begin*/, float* /*scores*/) {}
  // On the worker that observes, in place of EncodeLayer for such a layer.
  virtual absl::Status LeaveLayer(int32_t /*kv_layer*/) { return absl::OkStatus(); }

  // Gives memory back that the sequence can't need any more: what the prompt turned out not to
  // take. Engine thread, once the prompt is encoded or adopted.
  virtual void Trim() = 0;
  // Gives back everything that was promised for generation: the sequence is only kept, and nothing
  // is appended to it before the next Extend. Engine thread.
  virtual void Shrink() {}
  // Makes `other`, which was made for the same request, a copy of this sequence, whose prompt is
  // encoded or adopted and to which nothing was appended. Its pages are to be copied before either
  // decodes: they are added to `copies`.
  virtual absl::Status CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const = 0;

  // Bytes of pool memory that hold the sequence now, slack and tables included. On a device this,
  // TierTokens and what the counters have attended may be some tokens behind.
  virtual int64_t ResidentBytes() const = 0;
  // Pool memory taken, in bytes: resident and promised.
  virtual int64_t ReservedBytes() const = 0;
  // Bytes beside the pool that only save work: reconstructed keys and values of the step before.
  virtual int64_t CacheBytes() const { return 0; }
  virtual AttentionCounters counters() const = 0;
  // Tokens stored in a layer by KV head and precision, highest first: [kv_heads][tiers]. Empty for
  // formats of one precision.
  virtual std::span<const int32_t> TierTokens(int32_t /*kv_layer*/) const { return {}; }
};

}  // namespace baton::kv
