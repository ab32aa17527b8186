/* The decoders and encoders behind the table of codec/dtype.h. Call them through that table. Each takes n
 * values, a multiple of its block, and blocks at any address. */
#pragma once

#include <stddef.h>

void decode_f32(const void *src, float *dst, size_t n);
void decode_f16(const void *src, float *dst, size_t n);
void decode_bf16(const void *src, float *dst, size_t n);
void decode_f64(const void *src, float *dst, size_t n);
void decode_f8_e4m3(const void *src, float *dst, size_t n);
void decode_f8_e5m2(const void *src, float *dst, size_t n);
void decode_f8_e8m0(const void *src, float *dst, size_t n);
void decode_i8(const void *src, float *dst, size_t n);
void decode_i16(const void *src, float *dst, size_t n);
void decode_i32(const void *src, float *dst, size_t n);
void decode_i64(const void *src, float *dst, size_t n);
void decode_u8(const void *src, float *dst, size_t n);
void decode_u16(const void *src, float *dst, size_t n);
void decode_u32(const void *src, float *dst, size_t n);
void decode_u64(const void *src, float *dst, size_t n);
void decode_q4_0(const void *src, float *dst, size_t n);
void decode_q4_1(const void *src, float *dst, size_t n);
void decode_q5_0(const void *src, float *dst, size_t n);
void decode_q5_1(const void *src, float *dst, size_t n);
void decode_q8_0(const void *src, float *dst, size_t n);
void decode_q8_1(const void *src, float *dst, size_t n);
void decode_q1_0(const void *src, float *dst, size_t n);
void decode_q2_k(const void *src, float *dst, size_t n);
void decode_q3_k(const void *src, float *dst, size_t n);
void decode_q4_k(const void *src, float *dst, size_t n);
void decode_q5_k(const void *src, float *dst, size_t n);
void decode_q6_k(const void *src, float *dst, size_t n);
void decode_q8_k(const void *src, float *dst, size_t n);
void decode_iq1_s(const void *src, float *dst, size_t n);
void decode_iq1_m(const void *src, float *dst, size_t n);
void decode_iq2_xxs(const void *src, float *dst, size_t n);
void decode_iq2_xs(const void *src, float *dst, size_t n);
void decode_iq2_s(const void *src, float *dst, size_t n);
void decode_iq3_xxs(const void *src, float *dst, size_t n);
void decode_iq3_s(const void *src, float *dst, size_t n);
void decode_iq4_nl(const void *src, float *dst, size_t n);
void decode_iq4_xs(const void *src, float *dst, size_t n);
void decode_tq1_0(const void *src, float *dst, size_t n);
void decode_tq2_0(const void *src, float *dst, size_t n);
void decode_mxfp4(const void *src, float *dst, size_t n);
void decode_nvfp4(const void *src, float *dst, size_t n);

void encode_f32(const float *src, void *dst, size_t n, const float *importance);
void encode_f16(const float *src, void *dst, size_t n, const float *importance);
void encode_bf16(const float *src, void *dst, size_t n, const float *importance);
void encode_f8_e4m3(const float *src, void *dst, size_t n, const float *importance);
void encode_f8_e5m2(const float *src, void *dst, size_t n, const float *importance);
void encode_f8_e8m0(const float *src, void *dst, size_t n, const float *importance);
void encode_q4_0(const float *src, void *dst, size_t n, const float *importance);
void encode_q4_1(const float *src, void *dst, size_t n, const float *importance);
void encode_q5_0(const float *src, void *dst, size_t n, const float *importance);
void encode_q5_1(const float *src, void *dst, size_t n, const float *importance);
void encode_q8_0(const float *src, void *dst, size_t n, const float *importance);
void encode_q8_1(const float *src, void *dst, size_t n, const float *importance);
void encode_q2_k(const float *src, void *dst, size_t n, const float *importance);
void encode_q3_k(const float *src, void *dst, size_t n, const float *importance);
void encode_q4_k(const float *src, void *dst, size_t n, const float *importance);
void encode_q5_k(const float *src, void *dst, size_t n, const float *importance);
void encode_q6_k(const float *src, void *dst, size_t n, const float *importance);
void encode_q8_k(const float *src, void *dst, size_t n, const float *importance);
void encode_iq4_nl(const float *src, void *dst, size_t n, const float *importance);
void encode_iq4_xs(const float *src, void *dst, size_t n, const float *importance);
void encode_mxfp4(const float *src, void *dst, size_t n, const float *importance);
void encode_tq1_0(const float *src, void *dst, size_t n, const float *importance);
void encode_tq2_0(const float *src, void *dst, size_t n, const float *importance);
