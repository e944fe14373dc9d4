// SPDX-License-Identifier: Apache-2.0
// Decodes PNG through libpng. libpng reports errors by longjmp, so the functions that call setjmp
// hold no C++ objects.
#include <png.h>

#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/span.hpp"
#include "data/formats.hpp"
#include "data/images/decode.hpp"

namespace data {
namespace {

struct Job {
  const uint8_t* data;
  size_t left;
  png_structp png = nullptr;
  png_infop info = nullptr;
  char problem[160] = "";

  explicit Job(const Bytes& file) : data(file.data()), left(file.size()) {}
  Job(const Job&) = delete;
  ~Job() { png_destroy_read_struct(png ? &png : nullptr, info ? &info : nullptr, nullptr); }
};

void on_error(png_structp png, png_const_charp text) {
  std::snprintf(static_cast<Job*>(png_get_error_ptr(png))->problem, sizeof(Job::problem), "%s",
                text);
  png_longjmp(png, 1);
}
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  Job* job = static_cast<Job*>(png_get_io_ptr(png));
  if (count > job->left) png_error(png, "the file ends early");
  std::memcpy(out, job->data, count);
  job->data += count;
  job->left -= count;
}

bool read_header(Job& job) {
  job.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, on_error, on_warning);
  if (!job.png || !(job.info = png_create_info_struct(job.png))) {
    std::snprintf(job.problem, sizeof job.problem, "out of memory");
    return false;
  }
  if (setjmp(png_jmpbuf(job.png))) return false;
  png_set_read_fn(job.png, &job, read_bytes);
  // Old writers declare a smaller window than their data needs. Other decoders ignore that number.
  png_set_option(job.png, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON);
  // Skips texts, colour profiles and similar chunks, which may unpack gigabytes from a small file.
  png_set_keep_unknown_chunks(job.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(job.png, job.info);
  int type = png_get_color_type(job.png, job.info), depth = png_get_bit_depth(job.png, job.info);
  // libpng fixes the order of the transformations, so the order of these calls does not matter. The
  // published decoder makes the same transformations.
  if ((type & PNG_COLOR_MASK_ALPHA) || png_get_valid(job.png, job.info, PNG_INFO_tRNS))
    png_set_strip_alpha(job.png);
  if (depth > 8) png_set_strip_16(job.png);
  png_set_packing(job.png);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(job.png);
  if (!(type & PNG_COLOR_MASK_COLOR)) {
    if (depth < 8) png_set_expand_gray_1_2_4_to_8(job.png);
    png_set_gray_to_rgb(job.png);
  }
  return true;
}

bool read_pixels(Job& job, uint8_t* out, int64_t width, int64_t height) {
  if (setjmp(png_jmpbuf(job.png))) return false;
  int passes = png_set_interlace_handling(job.png);
  png_read_update_info(job.png, job.info);
  if (png_get_rowbytes(job.png, job.info) != size_t(width) * 3)
    png_error(job.png, "unexpected pixel format");
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < height; ++y) png_read_row(job.png, out + y * width * 3, nullptr);
  // The last row ends with the check of its chunk. Files without an end chunk, or with something
  // else in its place, are common, and nothing that follows changes a pixel.
  return true;
}

}  // namespace

std::string png_version() { return png_get_libpng_ver(nullptr); }

Array decode_png(const Bytes& file) {
  const base::Span span("decode a PNG", base::SpanKind::load);
  Job job(file);
  Array out;
  bool good = read_header(job);
  if (good) {
    int64_t width = png_get_image_width(job.png, job.info),
            height = png_get_image_height(job.png, job.info);
    check_image_size("PNG", width, height);
    out.reset(device::DType::u8, {height, width, 3});
    good = read_pixels(job, out.u8(), width, height);
  }
  if (!good) base::fail(base::Exit::data, "broken PNG: {}", job.problem);
  return out;
}

}  // namespace data
