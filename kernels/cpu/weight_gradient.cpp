// SPDX-License-Identifier: Apache-2.0
// Weight gradients in tiles: dw = the sum over all positions of the window of dy times the pixels
// below the window.
#include "kernels/cpu/weight_gradient.hpp"

#include <omp.h>

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cpu/instructions.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

constexpr int64_t kSteps = 128;  // of a panel, so that some panels fit the first-level cache
// The most output and input channels of a part. Its sums for one pixel of the window, and the
// panels of dy, fit the second-level cache.
constexpr int64_t kOutputs = 256, kInputs = 128;
// The sums of a part's splits are added in this many pieces of work.
constexpr int64_t kBlocksOfPart = 8;
// With fewer parts, positions are split as well. The sums of splits are added in order.
constexpr int64_t kLeastJobs = 8;
// Tiles are faster from these numbers of channels, or of positions in an image, on (kFew: up to
// them).
constexpr int64_t kManyOutputs = 256, kManyNarrowOutputs = 512,
                  kFewPositions = 49;                        // large windows
constexpr int64_t kManyPositions = 784, kWideOutputs = 128;  // single pixels
constexpr int64_t kFewInputs = 256, kManyInputs = 1024;      // single pixels with strides
// Without AVX-512, tiles are faster from this product of input and output channels on.
constexpr int64_t kManyWeights = 32 * 64;

int64_t whole_lines(int64_t bytes) { return base::round_up(bytes, 64); }

// How a gradient is divided among jobs.
struct Division {
  int64_t outputs, inputs;  // channels of a part, at most
  int64_t output_parts, input_parts, splits;
  int64_t taps;  // pixels of the window

  Division(const ConvolutionShape& s, int64_t chunk)
      : outputs(std::min(s.out, kOutputs)),
        inputs(std::min(s.in, kInputs)),
        output_parts(base::ceil_div(s.out, outputs)),
        input_parts(base::ceil_div(s.in, inputs)),
        splits(std::clamp(kLeastJobs / parts(), int64_t{1},
                          base::ceil_div(s.window.positions(), chunk))),
        taps(s.window.kernel_height * s.window.kernel_width) {}
  int64_t parts() const { return output_parts * input_parts; }
  int64_t jobs() const { return parts() * splits; }
  int64_t sums() const { return outputs * inputs * taps; }  // of a job, at most
};

template <class T>
class WeightGradient {
 public:
  WeightGradient(const ConvolutionBackwardWeights& a, const ActivationLoops<T>& loops)
      : a_(a), loops_(loops), division_(a.shape, kChunk) {}

  void run(Queue& queue) {
    const Division& d = division_;
    const int workers = threads_for(queue, a_.shape.flops(), d.jobs());
    const int64_t zeros = whole_lines(std::max(a_.shape.in, a_.shape.out) * int64_t(sizeof(T))),
                  sums = whole_lines(d.sums() * int64_t(sizeof(float))),
                  places = d.splits > 1 ? d.jobs() : workers, own = worker_bytes();
    char* const room =
        static_cast<char*>(queue.scratch(size_t(zeros + places * sums + int64_t(workers) * own)));
    std::fill(room, room + zeros, char{0});
    zeros_ = reinterpret_cast<const T*>(room);
    auto sums_at = [&](int64_t place) {
      return reinterpret_cast<float*>(room + zeros + place * sums);
    };
    char* const owned = room + zeros + places * sums;
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
    for (int64_t job = 0; job < d.jobs(); ++job) {
      const int worker = omp_get_thread_num();
      float* const to = sums_at(d.splits > 1 ? job : worker);
      add_job(job, to, own_of(owned + worker * own));
      if (d.splits == 1) write(part_of(job), 0, part_of(job).outputs, to, 0);
    }
    if (d.splits == 1) return;
    const int64_t blocks = d.parts() * kBlocksOfPart;
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t number = i / kBlocksOfPart, block = i % kBlocksOfPart;
      const Part part = part_of(number);
      write(part, part.outputs * block / kBlocksOfPart, part.outputs * (block + 1) / kBlocksOfPart,
            sums_at(number * d.splits), sums / int64_t(sizeof(float)));
    }
  }

 private:
  static constexpr int64_t kLine = 64 / int64_t(sizeof(T));
  static constexpr int64_t kChunk = kSteps * kRowsOfStep<T>;  // positions
  // Panels do not begin at multiples of 4096 bytes, which would share lines of the caches.
  static constexpr int64_t kPanelSize = (kSteps + 1) * kRowsOfStep<T> * kPanelColumns;

  // The channels of a part.
  struct Part {
    int64_t output, outputs, input, inputs;
  };
  // Rows that panels are made of.
  struct Rows {
    const T **dy, **x;
  };
  // A worker's memory: panels, the rows of these and of the next panels, and addresses in the rows
  // of the next panels.
  struct Own {
    T *dy, *x;
    Rows rows[2];
    const T** later;
  };
  // The positions of the window where pixel (down, right) of it is inside of the image.
  struct Tap {
    int64_t down, right, first_row, rows, first_column, columns;
  };

  int64_t worker_bytes() const {
    return (division_.outputs + division_.inputs) / kPanelColumns * kPanelSize *
               int64_t(sizeof(T)) +
           (4 + lines_of(division_.outputs) + lines_of(division_.inputs)) * kChunk *
               int64_t(sizeof(const T*));
  }
  // Lines of the caches that this many columns of a row touch.
  static int64_t lines_of(int64_t columns) { return base::ceil_div(columns, kLine); }
  Own own_of(char* room) const {
    Own own{};
    own.dy = reinterpret_cast<T*>(room);
    own.x = own.dy + division_.outputs / kPanelColumns * kPanelSize;
    auto rows = reinterpret_cast<const T**>(own.x + division_.inputs / kPanelColumns * kPanelSize);
    for (Rows& r : own.rows) {
      r = {rows, rows + kChunk};
      rows += 2 * kChunk;
    }
    own.later = rows;
    return own;
  }

  Part part_of(int64_t part) const {
    const Division& d = division_;
    const int64_t output = part % d.output_parts * d.outputs,
                  input = part / d.output_parts * d.inputs;
    return {output, std::min(d.outputs, a_.shape.out - output), input,
            std::min(d.inputs, a_.shape.in - input)};
  }

  Tap tap_of(int64_t tap) const {
    const Window& w = a_.shape.window;
    Tap t{};
    t.down = tap / w.kernel_width;
    t.right = tap % w.kernel_width;
    auto range = [&w](int64_t offset, int64_t size, int64_t positions, int64_t& first,
                      int64_t& count) {
      first = std::max<int64_t>(0, base::ceil_div(w.padding - offset, w.stride));
      const int64_t last = size - 1 + w.padding - offset;  // pixel of the first position, at most
      count = last < 0 ? 0 : std::max<int64_t>(0, std::min(positions, last / w.stride + 1) - first);
    };
    range(t.down, w.height, w.out_height(), t.first_row, t.rows);
    range(t.right, w.width, w.out_width(), t.first_column, t.columns);
    return t;
  }

  // Adds the products of a job. sums: [taps, outputs, inputs].
  void add_job(int64_t job, float* sums, const Own& own) const {
    const Part part = part_of(job / division_.splits);
    const int64_t split = job % division_.splits;
    for (int64_t i = 0; i < division_.taps; ++i, sums += part.outputs * part.inputs) {
      const Tap tap = tap_of(i);
      const int64_t positions = a_.shape.window.batch * tap.rows * tap.columns,
                    begin = positions * split / division_.splits,
                    end = positions * (split + 1) / division_.splits;
      auto count_at = [&](int64_t first) { return std::min(kChunk, end - first); };
      const Rows *now = &own.rows[0], *next = &own.rows[1];
      find_rows(tap, begin, count_at(begin), *now);
      int64_t first = begin;
      do {  // also without positions: the sums are 0 then
        const int64_t later = first + kChunk;
        int64_t lines = 0;
        if (later < end) {
          find_rows(tap, later, count_at(later), *next);
          lines = find_lines(part, count_at(later), *next, own.later);
        }
        add_chunk(part, count_at(first), first > begin, sums, *now, lines, own);
        first = later;
        std::swap(now, next);
      } while (first < end);
    }
  }

  // Finds the rows of dy and x at the tap's positions from `first` on.
  void find_rows(const Tap& tap, int64_t first, int64_t count, const Rows& rows) const {
    if (count == 0) return;
    const Window& w = a_.shape.window;
    const int64_t out_height = w.out_height(), out_width = w.out_width();
    const T *dy = static_cast<const T*>(a_.dy.data), *x = static_cast<const T*>(a_.x.data);
    int64_t image = first / (tap.rows * tap.columns), row = first / tap.columns % tap.rows,
            column = first % tap.columns;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = tap.first_row + row, c = tap.first_column + column;
      rows.dy[i] = dy + ((image * out_height + r) * out_width + c) * a_.shape.out;
      const int64_t y = r * w.stride - w.padding + tap.down,
                    z = c * w.stride - w.padding + tap.right;
      rows.x[i] = x + ((image * w.height + y) * w.width + z) * a_.shape.in;
      if (++column < tap.columns) continue;
      column = 0;
      if (++row < tap.rows) continue;
      row = 0;
      ++image;
    }
    if (count % kRowsOfStep<T>) rows.dy[count] = rows.x[count] = zeros_;
  }

  // Finds the lines of a part's columns in rows. Returns their number.
  int64_t find_lines(const Part& part, int64_t count, const Rows& rows, const T** lines) const {
    const T** to = lines;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t o = 0; o < part.outputs; o += kLine) *to++ = rows.dy[i] + part.output + o;
      for (int64_t c = 0; c < part.inputs; c += kLine) *to++ = rows.x[i] + part.input + c;
    }
    return to - lines;
  }

  // Multiplies rows, and prefetches `lines` cache lines of the next rows.
  void add_chunk(const Part& part, int64_t count, bool add, float* sums, const Rows& rows,
                 int64_t lines, const Own& own) const {
    const int64_t steps = base::ceil_div(count, kRowsOfStep<T>);
    auto pack = [&](T* panel, const T** from, int64_t first, int64_t columns) {
      loops_.pack_panels({.panel = panel,
                          .rows = from,
                          .size = kPanelSize,
                          .first = first,
                          .panels = columns / kPanelColumns,
                          .steps = steps});
    };
    pack(own.dy, rows.dy, part.output, part.outputs);
    pack(own.x, rows.x, part.input, part.inputs);
    const int64_t pairs = base::ceil_div(part.inputs, 2 * kPanelColumns),
                  tiles = pairs * (part.outputs / kPanelColumns);
    int64_t tile = 0;
    for (int64_t i = 0; i < part.inputs; i += 2 * kPanelColumns)
      for (int64_t o = 0; o < part.outputs; o += kPanelColumns, ++tile) {
        const int64_t line = lines * tile / tiles, next = lines * (tile + 1) / tiles;
        loops_.add_tile({.sums = sums + o * part.inputs + i,
                         .dy = own.dy + o / kPanelColumns * kPanelSize,
                         .x = own.x + i / kPanelColumns * kPanelSize,
                         .stride = part.inputs,
                         .size = kPanelSize,
                         .panels = std::min<int64_t>(2, (part.inputs - i) / kPanelColumns),
                         .steps = steps,
                         .add = add,
                         .later = own.later + line,
                         .later_count = std::min(next - line, 2 * steps)});
      }
  }

  // Writes, or adds, output channels [begin, end) of a part to dw. The sums of splits are `step`
  // floats apart.
  void write(const Part& part, int64_t begin, int64_t end, const float* sums, int64_t step) const {
    const int64_t taps = division_.taps, n = part.inputs;
    const bool add = a_.write == Write::accumulate;
    for (int64_t o = begin; o < end; ++o) {
      float* const to = a_.dw.f32() + ((part.output + o) * a_.shape.in + part.input) * taps;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const float* const from = sums + (tap * part.outputs + o) * n;
        float row[kInputs];
        std::copy_n(from, n, row);
        for (int64_t s = 1; s < division_.splits; ++s)
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) row[i] += from[s * step + i];
        if (taps == 1) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) to[i] = add ? to[i] + row[i] : row[i];
        } else {
          for (int64_t i = 0; i < n; ++i) {
            float& sum = to[i * taps + tap];
            sum = add ? sum + row[i] : row[i];
          }
        }
      }
    }
  }

  const ConvolutionBackwardWeights& a_;
  const ActivationLoops<T>& loops_;
  const Division division_;
  const T* zeros_ = nullptr;
};

// True where oneDNN is slower, by measurement. It is slow for strides, for the padding of small
// images, and for many rows of single pixels. With AMX it is always faster in bf16: it reached 650
// to 1,000 GFLOP/s on one core, these tiles 105. Without AVX-512 oneDNN is slower for all but few
// channels.
bool pays(const ConvolutionShape& s, bool narrow) {
  if (narrow && onednn_has_amx()) return false;
  if (!onednn_has_avx512()) return s.in * s.out >= kManyWeights;
  const Window& w = s.window;
  const int64_t positions = w.out_height() * w.out_width();
  if (w.kernel_height * w.kernel_width > 1)
    return (s.out >= (narrow ? kManyNarrowOutputs : kManyOutputs) && positions <= kFewPositions) ||
           (!narrow && w.stride > 1);
  return (positions >= kManyPositions && s.out >= kWideOutputs) ||
         (w.stride > 1 && (s.in <= kFewInputs || s.in >= kManyInputs));
}

}  // namespace

bool runs_in_tiles(const ConvolutionBackwardWeights& a) {
  const ConvolutionShape& s = a.shape;
  const VectorTable& table = vector_table();
  const bool has_loops = a.x.type == DType::bf16  ? table.bf16.add_tile != nullptr
                         : a.x.type == DType::f32 ? table.f32.add_tile != nullptr
                                                  : false;
  const bool fits = s.groups == 1 && s.in % kPanelColumns == 0 && s.out % kPanelColumns == 0;
  return has_loops && fits && pays(s, a.x.type == DType::bf16);
}

void run_in_tiles(const ConvolutionBackwardWeights& a, Queue& queue) {
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    WeightGradient<decltype(element)>(a, loops).run(queue);
  });
}

}  // namespace kernels
