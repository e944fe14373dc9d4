// SPDX-License-Identifier: Apache-2.0
#include "kernel_rows.hpp"

#include <algorithm>

#include "base/random.hpp"
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/patchify.hpp"
#include "row_list.hpp"

namespace gpu_check {

using namespace kernels;

Model b16() { return {"B/16", 256, 196, 64, 768, 3072, 12, 12, 6, 32000, 224, 16}; }
Model l14() { return {"L/14", 256, 256, 64, 1024, 4096, 16, 24, 6, 32000, 224, 14}; }
Model tiny() { return {"tiny", 4, 16, 8, 64, 256, 2, 2, 1, 500, 32, 8}; }

namespace {

void add_norm(std::vector<Row>& rows, const char* what, int64_t n, int64_t width, double layers) {
  const std::string shape = fmt::format("{}: {} x {}", what, n, width);
  add(rows, shape, layers, [=](Memory& t) {
    return LayerNormForward{.y = t.zeros(n * width, kNarrow),
                            .mean = t.zeros(n, kWide),
                            .rstd = t.zeros(n, kWide),
                            .x = t.normals(n * width, kWide),
                            .scale = t.normals(width, kWide),
                            .bias = t.normals(width, kWide),
                            .rows = n,
                            .columns = width};
  });
  add(rows, shape + ", added", layers, [=](Memory& t) {
    return LayerNormBackward{.dx = t.normals(n * width, kWide),
                             .dscale = t.zeros(width, kWide),
                             .dbias = t.zeros(width, kWide),
                             .dy = t.normals(n * width, kNarrow),
                             .x = t.normals(n * width, kWide),
                             .mean = t.normals(n, kWide),
                             .rstd = t.filled(n, 1),
                             .scale = t.normals(width, kWide),
                             .rows = n,
                             .columns = width,
                             .dx_write = Write::accumulate,
                             .rounded = t.zeros(n * width, kNarrow),
                             .sums = t.zeros(width, kWide)};
  });
}

// Rows of texts as in training. One example in four is predicted autoregressively: its rows end
// with the last label of a short caption.
struct Packing {
  std::vector<int32_t> offsets{};
  bool queries = false, keys = false;  // which are packed
};
Packing packing_of(const Model& m, bool keys) {
  constexpr int64_t kCaption = 14;
  Packing out{{0}, true, keys};
  for (int64_t b = 0; b < m.batch; ++b)
    out.offsets.push_back(out.offsets.back() +
                          int32_t(b % 4 == 0 ? std::min(kCaption, m.text) : m.text));
  return out;
}

void add_attention(std::vector<Row>& rows, const char* what, const Model& m, int64_t queries,
                   int64_t keys, Mask mask, double layers, int64_t joined,
                   const Packing& packing = {}) {
  auto elements = [&](bool packed, int64_t length) {
    return (packed ? packing.offsets.back() : m.batch * length) * m.width;
  };
  const int64_t q = elements(packing.queries, queries), k = elements(packing.keys, keys),
                dim = m.width / m.heads;
  auto shape = [=](Memory& t) {
    AttentionShape s{.batch = m.batch,
                     .heads = m.heads,
                     .query_length = queries,
                     .key_length = keys,
                     .head_dim = dim,
                     .mask = mask};
    if (mask == Mask::per_example) s.flags = t.zeros(m.batch, DType::u8);
    if (packing.queries) s.query_offsets = t.integers(packing.offsets);
    if (packing.keys) s.key_offsets = t.integers(packing.offsets);
    if (t.on_gpu()) {
      s.key_stride = joined * m.width;
      if (joined == 3) s.query_stride = s.key_stride;
    }
    return s;
  };
  // On a GPU, q, k and v are column blocks of one matrix; returns block `part`.
  auto column = [=](Memory& t, int64_t count, int64_t part, bool alone) {
    if (alone || !t.on_gpu()) return t.normals(count, kNarrow);
    const int64_t all = count / m.width;
    return t.normals(all * joined * m.width, kNarrow)
        .slice(part * m.width, (all - 1) * joined * m.width + m.width);
  };
  auto of_q = [=](Memory& t) { return column(t, q, 0, joined != 3); };
  auto of_k = [=](Memory& t) { return column(t, k, joined - 2, false); };
  auto of_v = [=](Memory& t) { return column(t, k, joined - 1, false); };
  const std::string name =
      fmt::format("{}: {} x {} heads, {} x {} x {}", what, m.batch, m.heads, queries, keys, dim);
  add(rows, name, layers, [=](Memory& t) {
    return AttentionForward{.o = t.zeros(q, kNarrow),
                            .lse = t.zeros(m.batch * m.heads * queries, kWide),
                            .q = of_q(t),
                            .k = of_k(t),
                            .v = of_v(t),
                            .shape = shape(t)};
  });
  add(rows, name, layers, [=](Memory& t) {
    return AttentionBackward{.dq = of_q(t),
                             .dk = of_k(t),
                             .dv = of_v(t),
                             .d_o = t.normals(q, kNarrow),
                             .q = of_q(t),
                             .k = of_k(t),
                             .v = of_v(t),
                             .o = t.normals(q, kNarrow),
                             .lse = t.filled(m.batch * m.heads * queries, 4),
                             .shape = shape(t)};
  });
}

// Adds the ops of the encoder, with GELU of both networks.
void add_encoder(std::vector<Row>& rows, const Model& m) {
  const int64_t image = m.batch * m.tokens, text = m.batch * m.text, d = m.width;
  const double enc = double(m.encoder);
  const int64_t patch = m.patch * m.patch * 3, pixels = m.batch * m.side * m.side * 3;
  add(rows, fmt::format("{} images of {}, bytes", m.batch, m.side), 1, [=](Memory& t) {
    return Patchify{t.zeros(image * patch, kNarrow),
                    t.zeros(pixels, DType::u8),
                    m.batch,
                    m.side,
                    m.side,
                    m.patch};
  });
  add(rows, fmt::format("positions: {} x {}", image, d), 1, [=](Memory& t) {
    return AddTable{t.zeros(image * d, kWide),
                    t.normals(image * d, kWide),
                    t.normals(m.tokens * d, kWide),
                    image,
                    d,
                    m.tokens};
  });
  add_linear(rows, "patches", image, patch, d, 1, {.bias = true, .wide = true});
  add_norm(rows, "encoder", image, d, 2 * enc + 1);
  add_linear(rows, "encoder q, k, v", image, d, 3 * d, enc, {.bias = true});
  add_linear(rows, "encoder out", image, d, d, enc, {.bias = true, .residual = true});
  add_attention(rows, "encoder", m, m.tokens, m.tokens, Mask::full, enc, 3);
  add_linear(rows, "encoder mlp in", image, d, m.mlp, enc, {.bias = true, .gelu = true});
  add_linear(rows, "encoder mlp out", image, m.mlp, d, enc,
             {.bias = true, .residual = true, .gelu_of = true});
  // In a step the matrix products compute GELU, so these rows have no calls.
  for (auto [what, count] : {std::pair{"encoder", image * m.mlp}, {"decoder", text * m.mlp}}) {
    const int64_t n = count;
    add(rows, fmt::format("{}: {}", what, n), 0, [=](Memory& t) {
      return GeluForward{t.zeros(n, kNarrow), t.normals(n, kNarrow)};
    });
    add(rows, fmt::format("{}: {}", what, n), 0, [=](Memory& t) {
      return GeluBackward{t.zeros(n, kNarrow), t.normals(n, kNarrow), t.normals(n, kNarrow)};
    });
  }
}

// Adds the ops of the decoder, up to its logits.
void add_decoder(std::vector<Row>& rows, const Model& m) {
  const int64_t image = m.batch * m.tokens, text = m.batch * m.text, d = m.width, v = m.vocabulary;
  const double dec = double(m.decoder);
  const int64_t packed = packing_of(m, true).offsets.back();
  // Three tokens in four are the mask.
  std::vector<int32_t> ids = drawn(text, v, "ids");
  for (size_t i = 0; i < ids.size(); ++i)
    if (i % 4 != 1) ids[i] = int32_t(v);
  add(rows, fmt::format("{} of {} x {}", text, v + 1, d), 1, [=](Memory& t) {
    return EmbeddingForward{t.zeros(text * d, kWide),
                            t.integers(ids),
                            t.normals((v + 1) * d, kWide),
                            t.normals(m.text * d, kWide),
                            text,
                            d,
                            v + 1,
                            m.text};
  });
  add(rows, fmt::format("{} of {} x {}", text, v + 1, d), 1, [=](Memory& t) {
    return EmbeddingBackward{
        t.zeros((v + 1) * d, kWide), t.normals(text * d, kWide), t.integers(ids), text, d, v + 1};
  });
  add_norm(rows, "decoder", packed, d, 3 * dec + 1);
  add_linear(rows, "decoder q, k, v", packed, d, 3 * d, dec, {});
  add_linear(rows, "decoder q", packed, d, d, dec, {});
  add_linear(rows, "decoder out, out", packed, d, d, 2 * dec, {.residual = true});
  add_linear(rows, "decoder k, v of the image", image, d, 2 * d, dec, {.accumulate = true});
  add_attention(rows, "decoder self, packed", m, m.text, m.text, Mask::per_example, dec, 3,
                packing_of(m, true));
  add_attention(rows, "decoder cross, packed", m, m.text, m.tokens, Mask::full, dec, 2,
                packing_of(m, false));
  add_linear(rows, "decoder mlp in", packed, d, m.mlp, dec, {.gelu = true});
  add_linear(rows, "decoder mlp out", packed, m.mlp, d, dec, {.residual = true, .gelu_of = true});
}

}  // namespace

std::vector<Row> rows_of(const Model& m) {
  std::vector<Row> rows;
  add_encoder(rows, m);
  add_decoder(rows, m);
  add_loss(rows, m);
  add_optimizer(rows, m);
  const int64_t n = m.batch * m.tokens * m.width;
  add(rows, fmt::format("{}", n), 0, [=](Memory& t) {
    return Add{t.zeros(n, kWide), t.normals(n, kWide), t.normals(n, kWide)};
  });
  add(rows, fmt::format("{}", n), 0, [=](Memory& t) { return Fill{t.zeros(n, kWide), 1}; });
  add(rows, fmt::format("{}", n), 0, [=](Memory& t) {
    return Dropout{t.zeros(n, kNarrow), t.normals(n, kNarrow), 0.1f, base::Stream(1, "d"), 0};
  });
  return rows;
}

}  // namespace gpu_check
