"""Raw Kineto traces to event tables: reading, exact time, categories, step windows."""
