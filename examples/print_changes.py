"""A destination of your own: the rows of a copy are counted, every change is printed."""


class PrintChanges:
    name = "print"

    def truncate_table(self, table):
        print(f"{table.name}: a full copy follows")

    def write_table_rows(self, table, rows):
        print(f"{table.name}: {rows.count()} rows")

    def write_events(self, batch):
        for event in batch.events():
            print(event)
