// A model directory's config.json.
#pragma once

namespace baton::checkpoint {

inline constexpr const char* kSmallConfig =
    R"({"architectures":["LlamaForCausalLM"],"hidden_size":8,"num_hidden_layers":1,
        "num_attention_heads":2,"intermediate_size":8,"vocab_size":16,
        "max_position_embeddings":64,"eos_token_id":2})";

}  // namespace baton::checkpoint
