// SPDX-License-Identifier: Apache-2.0
#include "kernel_rows.hpp"

#include <algorithm>

#include "base/random.hpp"
#include "kernels/adafactor.hpp"
#include "kernels/adamw_update.hpp"
#include "kernels/attention.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cast.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/ema_update.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/patchify.hpp"
#include "kernels/softmax_xent.hpp"
#include "kernels/square_sums.hpp"

namespace gpu_check {

using namespace kernels;

Model b16() { return {"B/16", 256, 196, 64, 768, 3072, 12, 12, 6, 32000, 224, 16}; }
Model l14() { return {"L/14", 256, 256, 64, 1024, 4096, 16, 24, 6, 32000, 224, 14}; }
Model tiny() { return {"tiny", 4, 16, 8, 64, 256, 2, 2, 1, 500, 32, 8}; }

View Memory::make(int64_t count, DType type) {
  buffers_.emplace_back(queue_.kind(), ledger_, "bench",
                        std::max<int64_t>(count, 1) * device::size_of(type));
  return {buffers_.back().data(), type, count};
}

void Memory::spread(const View& all, int64_t known) {
  for (; known < all.count; known *= 2) {
    const int64_t n = std::min(known, all.count - known);
    kernels::run(Copy{all.slice(known, n), all.slice(0, n)}, queue_);
  }
}

View Memory::normals(int64_t count, DType type) {
  static const std::vector<float> wide = [] {
    std::vector<float> out(1 << 16);
    const base::Stream stream(1, "gpu_check");
    for (size_t i = 0; i < out.size(); ++i) out[i] = float(0.5 * stream.normal(i));
    return out;
  }();
  View v = make(count, type);
  const int64_t known = std::min<int64_t>(count, int64_t(wide.size()));
  if (type == DType::f32) {
    device::upload(v.slice(0, known), wide.data(), queue_);
  } else {
    std::vector<uint16_t> narrow;
    for (float x : wide) narrow.push_back(loops::round_to_bf16(x).bits);
    device::upload(v.slice(0, known), narrow.data(), queue_);
    queue_.synchronize();
  }
  spread(v, known);
  return v;
}

View Memory::filled(int64_t count, float value) {
  View v = make(count, DType::f32);
  kernels::run(Fill{v, value}, queue_);
  return v;
}

View Memory::zeros(int64_t count, DType type) { return make(count, type); }

View Memory::integers(const std::vector<int32_t>& values) {
  View v = make(int64_t(values.size()), DType::i32);
  device::upload(v, values.data(), queue_);
  queue_.synchronize();
  return v;
}

namespace {

constexpr DType kWide = DType::f32, kNarrow = DType::bf16;

// `args(memory)` makes the argument struct. A second call, on a plan's memory, gives the cost.
template <class F>
void add(std::vector<Row>& rows, std::string shape, double per_step, F args) {
  using Args = decltype(args(std::declval<Memory&>()));
  Row row;
  row.op = name_of(Args::op);
  row.shape = std::move(shape);
  row.per_step = per_step;
  row.prepare = [args](Memory& memory, Queue& queue) -> std::function<void()> {
    return [call = args(memory), &queue] { kernels::run(call, queue); };
  };
  Queue paper(device::Kind::plan);
  Memory measuring(paper);
  row.cost = cost(args(measuring));
  rows.push_back(std::move(row));
}

std::vector<int32_t> drawn(int64_t count, int64_t end, const char* name) {
  std::vector<int32_t> out;
  const base::Stream stream(2, name);
  for (int64_t i = 0; i < count; ++i)
    out.push_back(int32_t(stream.uniform64(uint64_t(i)) * double(end)));
  return out;
}

// Adds one product of a layer: forward, gradient of the input, gradient of the weights.
void add_linear(std::vector<Row>& rows, const char* what, int64_t m, int64_t in, int64_t out,
                double layers, bool bias) {
  auto shape = [&](int64_t a, int64_t b, int64_t c, const char* which) {
    return fmt::format("{} {}: {} x {} x {}", what, which, a, b, c);
  };
  add(rows, shape(m, out, in, "forward"), layers, [=](Memory& t) {
    return Gemm{.c = t.zeros(m * out, kNarrow),
                .a = t.normals(m * in, kNarrow),
                .b = t.normals(in * out, kNarrow),
                .bias = bias ? t.normals(out, kNarrow) : View{},
                .m = m,
                .n = out,
                .k = in};
  });
  add(rows, shape(m, in, out, "dx"), layers, [=](Memory& t) {
    return Gemm{.c = t.zeros(m * in, kWide),
                .a = t.normals(m * out, kNarrow),
                .b = t.normals(in * out, kNarrow),
                .m = m,
                .n = in,
                .k = out,
                .trans_b = true};
  });
  auto dw = [=](Memory& t) {
    return Gemm{.c = t.zeros(in * out, kWide),
                .a = t.normals(m * in, kNarrow),
                .b = t.normals(m * out, kNarrow),
                .m = in,
                .n = out,
                .k = m,
                .trans_a = true};
  };
  add(rows, shape(in, out, m, "dw"), layers, dw);
  if (bias) {
    // Replaces the row above and the row below if a search finds it faster.
    add(rows, shape(in, out, m, "dw and sums"), 0, [=](Memory& t) {
      Gemm both = dw(t);
      both.sums = t.zeros(out, kWide);
      return both;
    });
    add(rows, fmt::format("{}: {} x {}", what, m, out), layers, [=](Memory& t) {
      return ColumnSum{
          .out = t.zeros(out, kWide), .x = t.normals(m * out, kNarrow), .m = m, .n = out};
    });
  }
}

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

// Rows of texts as in training: an example in four is predicted autoregressively, and has the rows
// up to the last label of a short caption.
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
                   int64_t keys, Mask mask, double layers, const Packing& packing = {}) {
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
    return s;
  };
  const std::string name =
      fmt::format("{}: {} x {} heads, {} x {} x {}", what, m.batch, m.heads, queries, keys, dim);
  add(rows, name, layers, [=](Memory& t) {
    return AttentionForward{.o = t.zeros(q, kNarrow),
                            .lse = t.zeros(m.batch * m.heads * queries, kWide),
                            .q = t.normals(q, kNarrow),
                            .k = t.normals(k, kNarrow),
                            .v = t.normals(k, kNarrow),
                            .shape = shape(t)};
  });
  add(rows, name, layers, [=](Memory& t) {
    return AttentionBackward{.dq = t.zeros(q, kNarrow),
                             .dk = t.zeros(k, kNarrow),
                             .dv = t.zeros(k, kNarrow),
                             .d_o = t.normals(q, kNarrow),
                             .q = t.normals(q, kNarrow),
                             .k = t.normals(k, kNarrow),
                             .v = t.normals(k, kNarrow),
                             .o = t.normals(q, kNarrow),
                             .lse = t.filled(m.batch * m.heads * queries, 4),
                             .shape = shape(t)};
  });
}

Update update_of(Memory& t, int64_t n) {
  return {.weights = t.normals(n, kWide),
          .gradient = t.normals(n, kWide),
          .sums = t.zeros(2, DType::f64),
          .rate = 1e-3f};
}

void add_optimizer(std::vector<Row>& rows, const Model& m) {
  const int64_t x = m.width, y = m.mlp, n = x * y;
  const Factored shape{1, x, 1, y, 1, false};
  // calls as if all tensors of a layer had this size
  const double calls = double(m.encoder + m.decoder) * 3.5;
  const std::string name = fmt::format("{} x {}", x, y);
  add(rows, name, calls, [=](Memory& t) {
    return AdafactorSums{.total = t.zeros(1, DType::f64),
                         .over_x = t.zeros(shape.over_x(), DType::f64),
                         .over_y = t.zeros(shape.over_y(), DType::f64),
                         .g = t.normals(n, kWide),
                         .shape = shape};
  });
  add(rows, name, calls, [=](Memory& t) {
    return AdafactorFactors{.v_over_x = t.filled(y, 1),
                            .v_over_y = t.filled(x, 1),
                            .factor_over_x = t.zeros(y, kWide),
                            .factor_over_y = t.zeros(x, kWide),
                            .over_x = t.zeros(y, DType::f64),
                            .over_y = t.zeros(x, DType::f64),
                            .shape = shape,
                            .beta2 = 0.5f,
                            .eps = 1e-3f};
  });
  add(rows, name + ", bf16 momentum", calls, [=](Memory& t) {
    AdafactorUpdate a{.update = update_of(t, n),
                      .scaling = {},
                      .momentum = t.normals(n, kNarrow),
                      .keep = 0.9f,
                      .add = 0.1f};
    a.scaling.factor_over_x = t.filled(y, 1);
    a.scaling.factor_over_y = t.filled(x, 1);
    a.scaling.shape = shape;
    return a;
  });
  add(rows, name, 0, [=](Memory& t) {
    return EmaUpdate{t.normals(n, kWide), t.normals(n, kWide), {}, 0.999f};
  });
  add(rows, name, 0, [=](Memory& t) {
    return SquareSums{t.zeros(1, DType::f64), t.normals(n, kWide)};
  });
  add(rows, name, 0, [=](Memory& t) {
    return AdamwUpdate{.update = update_of(t, n),
                       .mu = t.normals(n, kWide),
                       .nu = t.filled(n, 1),
                       .keep1 = 0.9f,
                       .add1 = 0.1f,
                       .keep2 = 0.99f,
                       .add2 = 0.01f,
                       .eps = 1e-8f};
  });
  add(rows, name, 0, [=](Memory& t) {
    return MomentumUpdate{update_of(t, n), t.normals(n, kWide), 0.9f, 0.9f, false};
  });
  add(rows, name, calls, [=](Memory& t) { return Cast{t.zeros(n, kNarrow), t.normals(n, kWide)}; });
}

// Adds the ops of the encoder, with GELU of both networks.
void add_encoder(std::vector<Row>& rows, const Model& m) {
  const int64_t image = m.batch * m.tokens, text = m.batch * m.text, d = m.width;
  const double enc = double(m.encoder), dec = double(m.decoder);
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
  add_linear(rows, "patches", image, patch, d, 1, true);
  add_norm(rows, "encoder", image, d, 2 * enc + 1);
  add_linear(rows, "encoder q, k, v, out", image, d, d, 4 * enc, true);
  add_attention(rows, "encoder", m, m.tokens, m.tokens, Mask::full, enc);
  add_linear(rows, "encoder mlp in", image, d, m.mlp, enc, true);
  add_linear(rows, "encoder mlp out", image, m.mlp, d, enc, true);
  for (auto [what, count, layers] :
       {std::tuple{"encoder", image * m.mlp, enc}, {"decoder", text * m.mlp, dec}}) {
    const int64_t n = count;
    add(rows, fmt::format("{}: {}", what, n), layers, [=](Memory& t) {
      return GeluForward{t.zeros(n, kNarrow), t.normals(n, kNarrow)};
    });
    add(rows, fmt::format("{}: {}", what, n), layers, [=](Memory& t) {
      return GeluBackward{t.zeros(n, kNarrow), t.normals(n, kNarrow), t.normals(n, kNarrow)};
    });
  }
}

// Adds the ops of the decoder, up to its logits.
void add_decoder(std::vector<Row>& rows, const Model& m) {
  const int64_t image = m.batch * m.tokens, text = m.batch * m.text, d = m.width, v = m.vocabulary;
  const double dec = double(m.decoder);
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
  add_norm(rows, "decoder", text, d, 3 * dec + 1);
  add_linear(rows, "decoder q, k, v, out, q, out", text, d, d, 6 * dec, false);
  add_linear(rows, "decoder k, v of the image", image, d, d, 2 * dec, false);
  add_attention(rows, "decoder self, packed", m, m.text, m.text, Mask::per_example, dec,
                packing_of(m, true));
  add_attention(rows, "decoder cross, packed", m, m.text, m.tokens, Mask::full, dec,
                packing_of(m, false));
  add_linear(rows, "decoder mlp in", text, d, m.mlp, dec, false);
  add_linear(rows, "decoder mlp out", text, m.mlp, d, dec, false);
}

// Adds the logits and their loss. 30 % of the positions are targets.
void add_loss(std::vector<Row>& rows, const Model& m) {
  const int64_t text = m.batch * m.text, d = m.width, v = m.vocabulary, targets = text * 3 / 10;
  add_linear(rows, "logits", targets, d, v, 1, true);
  std::vector<int32_t> index;
  for (int64_t i = 0; i < targets; ++i) index.push_back(int32_t(i * text / targets));
  add(rows, fmt::format("{} of {} x {}", targets, text, d), 1, [=](Memory& t) {
    return GatherRows{t.zeros(targets * d, kNarrow),
                      t.normals(text * d, kNarrow),
                      t.integers(index),
                      targets,
                      d,
                      text};
  });
  add(rows, fmt::format("{} of {} x {}", targets, text, d), 1, [=](Memory& t) {
    return ScatterRows{t.zeros(text * d, kWide),
                       t.normals(targets * d, kWide),
                       t.integers(index),
                       targets,
                       d,
                       text};
  });
  add(rows, fmt::format("{} x {}", targets, v), 1, [=](Memory& t) {
    return SoftmaxXent{.logits = t.normals(targets * v, kWide),
                       .labels = t.integers(drawn(targets, v, "labels")),
                       .row_scale = t.filled(targets, 1),
                       .loss = t.zeros(targets, kWide),
                       .rows = targets,
                       .columns = v,
                       .rounded = t.zeros(targets * v, kNarrow)};
  });
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
