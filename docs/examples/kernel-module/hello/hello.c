// SPDX-License-Identifier: GPL-2.0
// Says hello; the place of a driver that is in no kernel.
#include <linux/module.h>

static int __init hello_init(void)
{
	pr_warn("hello from a module of one's own\n");
	return 0;
}

static void __exit hello_exit(void)
{
}

module_init(hello_init);
module_exit(hello_exit);
MODULE_DESCRIPTION("Says hello");
MODULE_LICENSE("GPL");
