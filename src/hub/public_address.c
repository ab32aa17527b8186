#include "hub/public_address.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* IANA's special-purpose registries. */
static const struct range4 {
    uint32_t address;
    int bits;
} not_public4[] = {
    {0x00000000, 8},  /* 0.0.0.0/8 this network */
    {0x0a000000, 8},  /* 10.0.0.0/8 private */
    {0x64400000, 10}, /* 100.64.0.0/10 carrier NAT */
    {0x7f000000, 8},  /* 127.0.0.0/8 loopback */
    {0xa9fe0000, 16}, /* 169.254.0.0/16 link-local, clouds' metadata */
    {0xac100000, 12}, /* 172.16.0.0/12 private */
    {0xc0000000, 24}, /* 192.0.0.0/24 protocol assignments */
    {0xc0000200, 24}, /* 192.0.2.0/24 documentation */
    {0xc0586300, 24}, /* 192.88.99.0/24 6to4 relays */
    {0xc0a80000, 16}, /* 192.168.0.0/16 private */
    {0xc6120000, 15}, /* 198.18.0.0/15 benchmarks */
    {0xc6336400, 24}, /* 198.51.100.0/24 documentation */
    {0xcb007100, 24}, /* 203.0.113.0/24 documentation */
    {0xe0000000, 3},  /* 224.0.0.0/3 multicast, reserved, broadcast */
};

static bool is_public4(uint32_t address)
{
    for (size_t i = 0; i < sizeof not_public4 / sizeof *not_public4; i++)
        if ((address ^ not_public4[i].address) >> (32 - not_public4[i].bits) == 0)
            return false;
    return true;
}

static uint32_t four_at(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Global unicast is 2000::/3; of it some ranges are special. */
static bool is_public6(const uint8_t b[16])
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff},
                         nat64[12] = {0, 0x64, 0xff, 0x9b};
    if (!memcmp(b, mapped, sizeof mapped) || !memcmp(b, nat64, sizeof nat64))
        return is_public4(four_at(b + 12));
    if (b[0] >> 5 != 1)
        return false;
    uint32_t head = four_at(b);
    if (head >> 16 == 0x2002) /* 6to4 */
        return is_public4(four_at(b + 2));
    return head >> 9 != 0x20010000 >> 9 && /* 2001::/23 protocol assignments, Teredo */
           head != 0x20010db8 &&           /* documentation */
           head >> 12 != 0x3fff0000 >> 12; /* 3fff::/20 documentation */
}

bool address_is_public(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return is_public4(ntohl(in.sin_addr.s_addr));
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, a, sizeof in);
        return is_public6(in.sin6_addr.s6_addr);
    }
    return false;
}
